"""Trains a drafter on written text: steps, schedule, checkpoints, and a look at held-out text.

Knows a student and tables; files other than its checkpoint are not its affair.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from parlay.errors import BadRequest
from parlay.training.agreement import Agreement, agreement
from parlay.training.batches import Batch, Table, sharpened
from parlay.training.loss import divergence
from parlay.training.rounding import ROUNDING
from parlay.training.shape import Shape
from parlay.training.student import Student

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
    learning_rate: float = 2e-3
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
class Look:
    """One look at held-out text."""

    step: int
    seconds: float
    tokens_seen: int
    loss: float
    first_token: float
    acceptance_length: float


@dataclass(slots=True)
class Progress:
    """Where the training stands."""

    step: int = 0
    epoch: int = 0
    batch: int = 0  # in this epoch
    seconds: float = 0.0
    tokens_seen: int = 0  # generated ones, which are what is learned from
    looks: list[Look] = field(default_factory=list)


def in_time(recipe: Recipe, progress: Progress) -> Recipe:
    """In minutes what is left until `ends_at`: the learning rate is down by then, and where no
    time is left the checkpoint stands as it is."""
    if recipe.ends_at == math.inf:
        return recipe
    left_s = max(0.0, recipe.ends_at - time.time())
    if not progress.seconds + left_s:
        raise BadRequest("the time was over before the training could begin; give it more")
    return replace(recipe, minutes=min(recipe.minutes, (progress.seconds + left_s) / 60))


Watch = Callable[[Progress, float, float], None]  # where it stands, share done, loss


class Trainer:
    """A student, its optimiser, and the texts it learns from."""

    def __init__(
        self, shape: Shape, recipe: Recipe, train: Table, held_out: Table, device: str
    ) -> None:
        torch.manual_seed(recipe.seed)
        self.recipe = recipe
        self.device = torch.device(device)
        self.student = Student(shape, recipe.seed).to(self.device)
        self.progress = Progress()
        self._train = train
        self.held_out = held_out
        self._optimiser = _optimiser(self.student, recipe, self.device)
        self._losses: list[Any] = []
        self._started = time.monotonic()

    def run(self, checkpoint: Path | None, watch: Watch) -> Agreement:
        """Train to the end and return the last look. Interrupted, it leaves a checkpoint."""
        self._started = time.monotonic() - self.progress.seconds
        saved = shown = time.monotonic()
        next_look = 1 + len(self.progress.looks)
        try:
            for texts in self._batches():
                self._step(self._train.batch(texts))
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

    # -- steps ----------------------------------------------------------------

    def _batches(self) -> Iterator[NDArray[np.int64]]:
        """Epoch after epoch, from where the training stands; text written meanwhile joins in."""
        while self.done < 1:
            self._train.refresh()
            seed = self.recipe.seed * 1000 + self.progress.epoch
            batches = self._train.epoch(self.recipe.batch_tokens, seed)
            yield from batches[self.progress.batch :]
            self.progress.epoch += 1
            self.progress.batch = 0

    def _step(self, batch: Batch) -> None:
        self._set_rounding()
        rate = self.recipe.learning_rate * scheduled(self.done)
        for group in self._optimiser.param_groups:
            group["lr"] = rate
        loss = self._loss(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.student.parameters(), 1.0)
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)
        self._losses = [*self._losses[1 - _KEPT_LOSSES :], loss.detach()]
        self.progress.step += 1
        self.progress.batch += 1
        self.progress.tokens_seen += len(batch.rows)
        self.progress.seconds = time.monotonic() - self._started

    def _loss(self, batch: Batch) -> Any:
        on_gpu = self.device.type == "cuda"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=on_gpu):
            hidden = self.student(batch.tokens).flatten(0, 1)[batch.rows]
        logprobs, tail = sharpened(batch, self.recipe.temperature)
        return divergence(hidden, self.student.head, batch.top_ids, logprobs, tail)

    def _set_rounding(self) -> None:
        """Once rounded, always rounded: the last looks are at what will be shipped."""
        if self.recipe.rounding and self.done >= self.recipe.rounding_from:
            self.student.rounding = ROUNDING[self.recipe.rounding]

    def _look(self) -> Agreement:
        found = agreement(self.student, self.held_out)
        p = self.progress
        p.looks.append(
            Look(
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
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        state = {
            "shape": asdict(self.student.shape),
            "recipe": asdict(self.recipe),
            "student": self.student.state_dict(),
            "optimiser": self._optimiser.state_dict(),
            "progress": asdict(self.progress),
        }
        torch.save(state, part)
        part.replace(path)

    def resume(self, path: Path) -> bool:
        """Go on from a checkpoint of the same shape and seed, if there is one."""
        if not path.is_file():
            return False
        try:
            state = torch.load(path, map_location=self.device, weights_only=True)
        except Exception as error:  # a pickle can fail in any way
            raise BadRequest(f"{path} is damaged ({type(error).__name__}); remove it") from None
        if state["shape"] != asdict(self.student.shape) or (
            state["recipe"]["seed"] != self.recipe.seed
        ):
            raise BadRequest(f"{path} is of another preset or seed; remove it or choose another -o")
        self.student.load_state_dict(state["student"])
        self._optimiser.load_state_dict(state["optimiser"])
        told = state["progress"]
        self.progress = Progress(**{**told, "looks": [Look(**look) for look in told["looks"]]})
        return True


def scheduled(done: float) -> float:
    """Up in a straight line, then down along half a cosine."""
    if done < _WARM_UP:
        return max(done / _WARM_UP, 0.01)
    return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * (done - _WARM_UP) / (1 - _WARM_UP)))


def _optimiser(student: Student, recipe: Recipe, device: Any) -> Any:
    """Weights shrink a little at every step; norms and embeddings do not."""
    matrices: list[Any] = []
    others: list[Any] = []
    for name, parameter in student.named_parameters():
        shrinks = parameter.ndim == 2 and name.startswith("blk.")
        (matrices if shrinks else others).append(parameter)
    groups = [
        {"params": matrices, "weight_decay": recipe.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups, lr=recipe.learning_rate, betas=(0.9, 0.95), fused=device.type == "cuda"
    )
