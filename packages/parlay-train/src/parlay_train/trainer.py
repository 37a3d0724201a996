"""Trains a drafter on written text: steps, schedule, checkpoints, and a look at held-out text.

`Training` is what all kinds share. Knows a student and tables; files other than its checkpoint are
not its affair.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from parlay import store
from parlay.errors import BadRequest
from parlay_train.agreement import Agreement, agreement
from parlay_train.loss import divergence
from parlay_train.rounding import ROUNDING
from parlay_train.student import Student
from parlay_train.student_shape import StudentShape
from parlay_train.text_batches import Table, sharpened

LEARNING_RATE = 2e-3
START_LEARNING_RATE = LEARNING_RATE / 4  # of a trained drafter: more would first undo what it knows
_WARM_UP = 0.02  # share of the training
_CHECKPOINT_S = 60.0
_SHOWN_S = 0.5
_KEPT_LOSSES = 50  # steps whose loss is averaged in what is shown


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to train. Steps, minutes or a time of day ends it, whichever comes first."""

    steps: int
    minutes: float = math.inf
    ends_at: float = math.inf  # seconds since 1970; whatever came before training counts too
    batch_tokens: int = 32_768
    learning_rate: float = LEARNING_RATE
    weight_decay: float = 0.05
    temperature: float = 1.0  # of the target's distributions; below 1 the first choice weighs more
    rounding: str = ""  # q4_0 or q8_0: the weights are rounded so in the last part
    rounding_from: float = 0.6
    looks: int = 10  # at held-out text, evenly spread
    seed: int = 0

    def as_dict(self) -> dict[str, Any]:
        """The report's JSON form, which knows no infinity."""
        values = {k: None if v == math.inf else v for k, v in asdict(self).items()}
        del values["ends_at"]  # of one run, not of the recipe
        return values


@dataclass(frozen=True, slots=True)
class HeldOutLook:
    """One look at held-out text."""

    step: int
    seconds: float
    tokens_seen: int
    loss: float
    first_token: float
    acceptance_length: float


@dataclass(slots=True)
class TrainingProgress:
    """Where the training stands."""

    step: int = 0
    epoch: int = 0
    batch: int = 0  # in this epoch
    seconds: float = 0.0
    tokens_seen: int = 0  # generated ones, which are what is learned from
    looks: list[HeldOutLook] = field(default_factory=list)


def in_time(recipe: Recipe, progress: TrainingProgress) -> Recipe:
    """In minutes what is left until `ends_at`: the learning rate is down by then, and where no
    time is left the checkpoint stands as it is."""
    if recipe.ends_at == math.inf:
        return recipe
    left_s = max(0.0, recipe.ends_at - time.time())
    if not progress.seconds + left_s:
        raise BadRequest("the time was over before the training could begin; give it more")
    return replace(recipe, minutes=min(recipe.minutes, (progress.seconds + left_s) / 60))


Watch = Callable[[TrainingProgress, float, float], None]  # where it stands, share done, loss


class Training(ABC):
    """A student, its optimiser, and the way to the end. Kinds say what is learned from what."""

    student: Any
    layers: tuple[str, ...] = ("blk.",)  # matrices of these shrink a little at every step

    def __init__(self, student: Any, recipe: Recipe, device: Any) -> None:
        self.student = student
        self.recipe = recipe
        self.device = device
        self.progress = TrainingProgress()
        self._optimiser = _optimiser(student, self.layers, recipe, device)
        self._losses: list[Any] = []

    # -- a kind's own ---------------------------------------------------------

    @abstractmethod
    def _epoch(self, n: int) -> Sequence[NDArray[np.int64]]:
        """The texts of each batch."""

    @abstractmethod
    def _learn(self, texts: NDArray[np.int64]) -> tuple[Any, int]:
        """The loss on a batch, and how many tokens it was learned from."""

    @abstractmethod
    def _agreement(self) -> Agreement:
        """With the target on held-out text."""

    @abstractmethod
    def _shape(self) -> dict[str, Any]:
        """What a checkpoint must agree with."""

    # -- for all --------------------------------------------------------------

    def run(self, checkpoint: Path | None, watch: Watch) -> Agreement:
        """Train to the end and return the last look. Interrupted, it leaves a checkpoint."""
        started = time.monotonic() - self.progress.seconds
        saved = shown = time.monotonic()
        next_look = 1 + len(self.progress.looks)
        try:
            for texts in self._batches():
                self._step(texts)
                self.progress.seconds = time.monotonic() - started
                if self.done * self.recipe.looks >= next_look and self.done < 1:
                    self._look()
                    next_look = int(self.done * self.recipe.looks) + 1
                if time.monotonic() - shown > _SHOWN_S:  # reading the loss waits for the GPU
                    watch(self.progress, self.done, self.loss)
                    shown = time.monotonic()
                if checkpoint and time.monotonic() - saved > _CHECKPOINT_S:
                    self.save(checkpoint)
                    saved = time.monotonic()
                if self.done >= 1:
                    break
        finally:
            if checkpoint:
                self.save(checkpoint)
        return self._look()

    @property
    def done(self) -> float:
        """Share of the training that is over, by steps or by time."""
        by_time = self.progress.seconds / 60 / self.recipe.minutes
        return min(1.0, max(self.progress.step / self.recipe.steps, by_time))

    @property
    def loss(self) -> float:
        """Mean of the last steps."""
        return float(torch.stack(self._losses).mean()) if self._losses else math.nan

    def _batches(self) -> Iterator[NDArray[np.int64]]:
        """Epoch after epoch, from where the training stands."""
        while self.done < 1:
            yield from self._epoch(self.progress.epoch)[self.progress.batch :]
            self.progress.epoch += 1
            self.progress.batch = 0

    def _step(self, texts: NDArray[np.int64]) -> None:
        # Once rounded, always rounded: the last looks are at what will be shipped.
        if self.recipe.rounding and self.done >= self.recipe.rounding_from:
            self.student.rounding = ROUNDING[self.recipe.rounding]
        rate = self.recipe.learning_rate * scheduled(self.done)
        for group in self._optimiser.param_groups:
            group["lr"] = rate
        loss, n_tokens = self._learn(texts)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.student.parameters(), 1.0)
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)
        self._losses = [*self._losses[1 - _KEPT_LOSSES :], loss.detach()]
        self.progress.step += 1
        self.progress.batch += 1
        self.progress.tokens_seen += n_tokens

    def _look(self) -> Agreement:
        found = self._agreement()
        p = self.progress
        p.looks.append(
            HeldOutLook(
                p.step,
                round(p.seconds, 1),
                p.tokens_seen,
                round(self.loss, 4),
                round(found.first_token, 4),
                round(found.acceptance_length, 4),
            )
        )
        return found

    # -- checkpoints ----------------------------------------------------------

    def save(self, path: Path) -> None:
        """Write everything that is needed to go on, at once or not at all."""
        state = {
            "shape": self._shape(),
            "seed": self.recipe.seed,
            "student": self.student.state_dict(),
            "optimiser": self._optimiser.state_dict(),
            "progress": asdict(self.progress),
        }
        with store.whole(path) as part:
            torch.save(state, part)

    def resume(self, path: Path) -> bool:
        """Go on from a checkpoint of the same shape and seed, if there is one."""
        if not path.is_file():
            return False
        try:
            state = torch.load(path, map_location=self.device, weights_only=True)
        except Exception as error:  # a pickle can fail in any way
            raise BadRequest(f"{path} is damaged ({type(error).__name__}); remove it") from None
        if (state["shape"], state["seed"]) != (self._shape(), self.recipe.seed):
            raise BadRequest(f"{path} is of another preset or seed; remove it or choose another -o")
        self.student.load_state_dict(state["student"])
        self._optimiser.load_state_dict(state["optimiser"])
        told = state["progress"]
        self.progress = TrainingProgress(
            **{**told, "looks": [HeldOutLook(**look) for look in told["looks"]]}
        )
        return True


class Trainer(Training):
    """A small llama, and the texts it learns the target's distributions from."""

    student: Student

    def __init__(
        self, shape: StudentShape, recipe: Recipe, train: Table, held_out: Table, device: str
    ) -> None:
        torch.manual_seed(recipe.seed)
        where = torch.device(device)
        super().__init__(Student(shape, recipe.seed).to(where), recipe, where)
        self._train = train
        self.held_out = held_out

    def _epoch(self, n: int) -> Sequence[NDArray[np.int64]]:
        self._train.refresh()  # text written meanwhile joins in
        return self._train.epoch(self.recipe.batch_tokens, self.recipe.seed * 1000 + n)

    def _learn(self, texts: NDArray[np.int64]) -> tuple[Any, int]:
        batch = self._train.batch(texts)
        on_gpu = self.device.type == "cuda"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=on_gpu):
            hidden = self.student(batch.tokens).flatten(0, 1)[batch.rows]
        logprobs, tail = sharpened(batch, self.recipe.temperature)
        loss = divergence(hidden, self.student.head, batch.top_ids, logprobs, tail)
        return loss, len(batch.rows)

    def _agreement(self) -> Agreement:
        return agreement(self.student, self.held_out)

    def _shape(self) -> dict[str, Any]:
        return asdict(self.student.shape)


def scheduled(done: float) -> float:
    """Up in a straight line, then down along half a cosine."""
    if done < _WARM_UP:
        return max(done / _WARM_UP, 0.01)
    return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * (done - _WARM_UP) / (1 - _WARM_UP)))


def _optimiser(student: Any, layers: tuple[str, ...], recipe: Recipe, device: Any) -> Any:
    """Weights of layers shrink a little at every step; norms, embeddings and heads do not."""
    matrices: list[Any] = []
    others: list[Any] = []
    for name, parameter in student.named_parameters():
        shrinks = parameter.ndim == 2 and name.startswith(layers)
        (matrices if shrinks else others).append(parameter)
    groups = [
        {"params": matrices, "weight_decay": recipe.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups, lr=recipe.learning_rate, betas=(0.9, 0.95), fused=device.type == "cuda"
    )
