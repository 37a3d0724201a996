"""Trains a block drafter: what it learns from a batch, and what its blocks would give.

Knows a student and tables of blocks; the way to the end is every training's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from parlay_train.agreement import Agreement
from parlay_train.block.block_batches import BlockBatch, BlockTable
from parlay_train.block.block_loss import cross_entropy
from parlay_train.block.block_student import BlockStudent
from parlay_train.trainer import Recipe, Training

_BLOCKS = 24  # in each text of a batch
_DECAY = 4.0  # a token so many places later weighs 1/e: it only counts if those before it hold
_LOOKED_AT = 32  # blocks of a text at once
_ROWS = 4096

Lengths = NDArray[np.int64]


class BlockTrainer(Training):
    """A block drafter, and the captured states it learns from."""

    student: BlockStudent
    layers = ("blk.", "fc")

    def __init__(
        self,
        student: BlockStudent,
        recipe: Recipe,
        train: BlockTable,
        held_out: BlockTable,
        head_rows: Any,
    ) -> None:
        torch.manual_seed(recipe.seed)
        super().__init__(student, recipe, student.fc.device)
        self.held_out = held_out
        self._train = train
        self._head_rows = head_rows

    def _epoch(self, n: int) -> Sequence[NDArray[np.int64]]:
        return self._train.table.epoch(self.recipe.batch_tokens, self._seed(n))

    def _learn(self, texts: NDArray[np.int64]) -> tuple[Any, int]:
        n_drafted = self._n_drafted()
        batch = self._train.batch(texts, _BLOCKS, n_drafted, self._seed(self.progress.step))
        hidden = _hidden(self.student, batch, n_drafted)[batch.wanted]
        weight = torch.exp(-batch.position.float() / _DECAY)
        loss = cross_entropy(hidden, self.student.head, batch.ids, batch.p, weight)
        return loss, len(batch.ids)

    def _n_drafted(self) -> int:
        """Whole blocks half of the time, shorter ones else: the window is the controller's."""
        longest = self.student.shape.block_size - 1
        if self.progress.step % 2 == 0:
            return longest
        draw = np.random.default_rng(self._seed(self.progress.step))
        return int(draw.integers(min(2, longest), longest + 1))

    def _seed(self, n: int) -> int:
        return self.recipe.seed * 1_000_003 + n

    def _agreement(self) -> Agreement:
        return block_agreement(self.student, self.held_out, self._head_rows)

    def _shape(self) -> dict[str, Any]:
        return {**asdict(self.student.shape), "layers": list(self.student.shape.layers)}


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
