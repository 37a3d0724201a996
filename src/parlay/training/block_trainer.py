"""Trains a block drafter: steps, schedule, and a look at held-out text.

Knows a student and tables of blocks; files are not its affair.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from parlay.errors import BadRequest
from parlay.training.agreement import Agreement
from parlay.training.block_loss import cross_entropy
from parlay.training.block_shape import BlockShape
from parlay.training.block_student import BlockStudent
from parlay.training.blocks import BlockBatch, BlockTable
from parlay.training.rounding import ROUNDING
from parlay.training.trainer import Look, Progress, Recipe, Watch, scheduled

_BLOCKS = 24  # in each text of a batch
_DECAY = 4.0  # a token so many places later weighs 1/e: it only counts if those before it hold
_CHECKPOINT_S = 60.0
_SHOWN_S = 0.5
_KEPT_LOSSES = 50
_LOOKED_AT = 32  # blocks of a text at once
_ROWS = 4096

Lengths = NDArray[np.int64]


class BlockTrainer:
    """A block drafter, its optimiser, and what it learns from."""

    def __init__(
        self,
        student: BlockStudent,
        recipe: Recipe,
        train: BlockTable,
        held_out: BlockTable,
        head_rows: Any,
    ) -> None:
        torch.manual_seed(recipe.seed)
        self.student = student
        self.recipe = recipe
        self.held_out = held_out
        self.progress = Progress()
        self._train = train
        self._head_rows = head_rows
        self._device = student.fc.device
        self._optimiser = _optimiser(student, recipe)
        self._losses: list[Any] = []

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
                    self.look()
                    next_look = int(self.done * self.recipe.looks) + 1
                if time.monotonic() - shown > _SHOWN_S:  # reading the loss waits for the GPU
                    watch(self.progress, self.done, self.loss)
                    shown = time.monotonic()
                if checkpoint and time.monotonic() - saved > _CHECKPOINT_S:
                    self.save(checkpoint)
                    saved = time.monotonic()
        finally:
            if checkpoint:
                self.save(checkpoint)
        return self.look()

    def _batches(self) -> Iterator[NDArray[np.int64]]:
        """Epoch after epoch, from where the training stands to its end."""
        p = self.progress
        while self.done < 1:
            groups = self._train.table.epoch(self.recipe.batch_tokens, self._seed(p.epoch))
            for texts in groups[p.batch :]:
                if self.done >= 1:
                    return
                p.batch += 1
                yield texts
            p.epoch, p.batch = p.epoch + 1, 0

    @property
    def done(self) -> float:
        """Share of the training that is over, by steps or by time."""
        by_time = self.progress.seconds / 60 / self.recipe.minutes
        return min(1.0, max(self.progress.step / self.recipe.steps, by_time))

    @property
    def loss(self) -> float:
        """Mean of the last steps."""
        return float(torch.stack(self._losses).mean()) if self._losses else math.nan

    def _seed(self, n: int) -> int:
        return self.recipe.seed * 1_000_003 + n

    # -- steps ----------------------------------------------------------------

    def _step(self, texts: NDArray[np.int64]) -> None:
        if self.recipe.rounding and self.done >= self.recipe.rounding_from:
            self.student.rounding = ROUNDING[self.recipe.rounding]
        for group in self._optimiser.param_groups:
            group["lr"] = self.recipe.learning_rate * scheduled(self.done)
        n_drafted = self._n_drafted()
        batch = self._train.batch(texts, _BLOCKS, n_drafted, self._seed(self.progress.step))
        loss = self._loss(batch, n_drafted)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.student.parameters(), 1.0)
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)
        self._losses = [*self._losses[1 - _KEPT_LOSSES :], loss.detach()]
        self.progress.step += 1
        self.progress.tokens_seen += len(batch.ids)

    def _n_drafted(self) -> int:
        """Whole blocks half of the time, shorter ones else: the window is the controller's."""
        longest = self.student.shape.block_size - 1
        if self.progress.step % 2 == 0:
            return longest
        draw = np.random.default_rng(self._seed(self.progress.step))
        return int(draw.integers(min(2, longest), longest + 1))

    def _loss(self, batch: BlockBatch, n_drafted: int) -> Any:
        hidden = _hidden(self.student, batch, n_drafted)[batch.wanted]
        weight = torch.exp(-batch.position.float() / _DECAY)
        return cross_entropy(hidden, self.student.head, batch.ids, batch.p, weight)

    # -- checkpoints ----------------------------------------------------------

    def save(self, path: Path) -> None:
        """Write everything that is needed to go on, at once or not at all."""
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        state = {
            "shape": _plain(self.student.shape),
            "seed": self.recipe.seed,
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
            state = torch.load(path, map_location=self._device, weights_only=True)
        except Exception as error:  # a pickle can fail in any way
            raise BadRequest(f"{path} is damaged ({type(error).__name__}); remove it") from None
        if (state["shape"], state["seed"]) != (_plain(self.student.shape), self.recipe.seed):
            raise BadRequest(f"{path} is of another preset or seed; remove it or choose another -o")
        self.student.load_state_dict(state["student"])
        self._optimiser.load_state_dict(state["optimiser"])
        told = state["progress"]
        self.progress = Progress(**{**told, "looks": [Look(**look) for look in told["looks"]]})
        return True

    # -- looks ----------------------------------------------------------------

    def look(self) -> Agreement:
        """On held-out text; also kept in the progress."""
        found = block_agreement(self.student, self.held_out, self._head_rows)
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


def _plain(shape: BlockShape) -> dict[str, Any]:
    return {**asdict(shape), "layers": list(shape.layers)}


def _hidden(student: BlockStudent, batch: BlockBatch, n_drafted: int) -> Any:
    device = batch.tokens.device.type
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        return student(batch.states.float(), batch.tokens, batch.anchors, n_drafted + 1)


# -- agreement --------------------------------------------------------------------------------


def block_agreement(
    student: BlockStudent, table: BlockTable, head_rows: Any, window: int | None = None
) -> Agreement:
    """What drafting blocks would give on greedy texts: every place tried, then walked."""
    window = window or student.shape.block_size - 1
    runs: list[Lengths] = []
    with torch.no_grad():
        for texts in table.table.epoch(1 << 14, seed=0):
            runs += _runs(student, table, head_rows, texts, window)
    return walked(runs, window)


def _runs(
    student: BlockStudent, table: BlockTable, head_rows: Any, texts: Lengths, window: int
) -> list[Lengths]:
    """For each text and place of its answer: how many drafted tokens would be accepted there."""
    starts, lengths = table.table.answer_start[texts], table.table.length[texts]
    n_places = int((lengths - starts).max())
    found = []
    for at in range(0, n_places, _LOOKED_AT):
        offsets = np.arange(at, min(at + _LOOKED_AT, n_places))
        anchors = torch.from_numpy(np.minimum(starts[:, None] + offsets, lengths[:, None] - 1))
        anchors = anchors.to(table.table.batch(texts[:1]).tokens.device)
        batch = table.batch_at(texts, anchors, window)
        found.append(_run_lengths(student, batch, head_rows, window))
    runs = np.concatenate(found, 1)
    return [row[: n - s] for row, n, s in zip(runs, lengths, starts, strict=True)]


def _run_lengths(student: BlockStudent, batch: BlockBatch, head_rows: Any, window: int) -> Lengths:
    hidden = _hidden(student, batch, window).flatten(0, -2)
    head = student.head.to(hidden.dtype)
    chosen = torch.cat(
        [(hidden[at : at + _ROWS] @ head.T).argmax(-1) for at in range(0, len(hidden), _ROWS)]
    )
    if head_rows is not None:
        chosen = head_rows[chosen]
    places = batch.anchors[:, :, None] + torch.arange(1, window + 1, device=chosen.device)
    length = batch.tokens.shape[1]
    text = batch.tokens.gather(1, places.flatten(1).clamp(max=length - 1)).view(places.shape)
    right = (chosen.view(places.shape) == text) & batch.wanted
    lengths: Lengths = right.long().cumprod(-1).sum(-1).cpu().numpy()
    return lengths


def walked(texts: list[Lengths], window: int) -> Agreement:
    """Round by round: as many as were accepted, then the target's own token."""
    tried, accepted = np.zeros(window, np.int64), np.zeros(window, np.int64)
    n_rounds = n_tokens = n_first = 0
    for runs in texts:
        n_tokens += len(runs)
        n_first += int((runs[:-1] > 0).sum())
        at = 0  # the prompt's pass gives the first token, and it is the first anchor
        while at < len(runs) - 1:
            run = int(runs[at])
            tried[: min(run + 1, window, len(runs) - 1 - at)] += 1
            accepted[:run] += 1
            n_rounds += 1
            at += run + 1
    generated = n_rounds + int(accepted.sum())
    return Agreement(
        n_tokens,
        n_first / max(1, n_tokens - len(texts)),
        tuple(float(a / t) for a, t in zip(accepted, tried, strict=True) if t),
        generated / n_rounds if n_rounds else 0.0,
        window,
    )


def _optimiser(student: BlockStudent, recipe: Recipe) -> Any:
    """Weights of layers shrink a little at every step; norms and the head do not."""
    named = list(student.named_parameters())
    matrices = [p for name, p in named if p.ndim == 2 and name.startswith(("blk.", "fc"))]
    others = [p for name, p in named if p.ndim != 2 or not name.startswith(("blk.", "fc"))]
    groups = [
        {"params": matrices, "weight_decay": recipe.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    fused = student.fc.device.type == "cuda"
    return torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=(0.9, 0.95), fused=fused)
