"""Batches of blocks: texts with their states, places to draft from, and what should be drafted.

Knows arrays, not models. Vocabulary ids become rows of the drafter's own head here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from parlay_train.block.block_states import Captured
from parlay_train.text_batches import Table


@dataclass(frozen=True, slots=True)
class BlockBatch:
    """n texts, m blocks in each, b tokens to be drafted in each block."""

    tokens: Any  # int64 [n, length]
    states: Any  # float16 [n, length, read]
    anchors: Any  # int64 [n, m]: the last token before each block
    wanted: Any  # bool [n, m, b]: whether the text goes on so far
    ids: Any  # int64 [wanted, k]: rows of the head
    p: Any  # float32 [wanted, k]: the target's probabilities, 0 where the head lacks a token
    position: Any  # int64 [wanted]: place in the block, from 0


class BlockTable:
    """A table of texts and their states. `head_rows`: tokens of the drafter's head, or None."""

    def __init__(self, table: Table, captured: Captured, head_rows: Any) -> None:
        self.table = table
        self._captured = captured
        self._device = captured.rows.device
        self._row_of: Any = None
        if head_rows is not None:
            n_vocab = int(head_rows.max()) + 1
            self._row_of = torch.full((n_vocab,), -1, device=self._device)
            self._row_of[head_rows] = torch.arange(len(head_rows), device=self._device)

    def batch(
        self, texts: NDArray[np.int64], n_blocks: int, n_drafted: int, seed: int
    ) -> BlockBatch:
        """Blocks at random places of the answers."""
        draw = torch.Generator(device=self._device).manual_seed(seed)
        shares = torch.rand(len(texts), n_blocks, generator=draw, device=self._device)
        first, last = self._range(texts)
        anchors = first[:, None] + (shares * (last - first + 1)[:, None]).long()
        return self.batch_at(texts, anchors, n_drafted)

    def batch_at(self, texts: NDArray[np.int64], anchors: Any, n_drafted: int) -> BlockBatch:
        """Blocks after these places."""
        base = self.table.batch(texts)
        kept, length, start = (
            self._tensor(each[texts])
            for each in (self._captured.n_kept, self.table.length, self.table.answer_start)
        )
        n_answer = self._tensor(base.n_answer)
        first_row = n_answer.cumsum(0) - n_answer
        ahead = torch.arange(1, n_drafted + 1, device=self._device)
        places = anchors[:, :, None] + ahead
        wanted = (places < length[:, None, None]) & (places >= start[:, None, None])
        wanted &= (anchors <= kept[:, None])[:, :, None]
        rows = (first_row - start)[:, None, None] + places
        ids, p = self._labels(base.top_ids[rows[wanted]], base.top_logprobs[rows[wanted]])
        return BlockBatch(
            tokens=base.tokens,
            states=self._states(texts, base.tokens.shape[1]),
            anchors=anchors,
            wanted=wanted,
            ids=ids,
            p=p,
            position=(ahead - 1).expand_as(places)[wanted],
        )

    def sample(self, n: int) -> Any:
        """States of about n tokens from all over the texts."""
        return self._captured.rows[:: max(1, len(self._captured.rows) // n)]

    def _range(self, texts: NDArray[np.int64]) -> tuple[Any, Any]:
        """First and last place from which something can be drafted."""
        first = np.maximum(1, self.table.answer_start[texts] - 1)
        last = np.minimum(self._captured.n_kept[texts], self.table.length[texts] - 2)
        return self._tensor(first), self._tensor(np.maximum(first, last))

    def _states(self, texts: NDArray[np.int64], length: int) -> Any:
        offset, kept = (
            self._tensor(each[texts]) for each in (self._captured.offset, self._captured.n_kept)
        )
        ahead = torch.arange(length, device=self._device)
        return self._captured.rows[offset[:, None] + torch.minimum(ahead, kept[:, None] - 1)]

    def _labels(self, ids: Any, logprobs: Any) -> tuple[Any, Any]:
        p = logprobs.float().exp()
        if self._row_of is None:
            return ids, p
        known = ids < len(self._row_of)
        rows = self._row_of[ids.clamp(max=len(self._row_of) - 1)]
        known &= rows >= 0
        return rows.clamp(min=0), p * known

    def _tensor(self, array: NDArray[np.int64]) -> Any:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)


def frequent(table: Table, n: int) -> NDArray[np.int64]:
    """The tokens a head of n rows should know: those the target writes most, in order of id."""
    counts = np.zeros(0, np.int64)
    for texts in table.epoch(1 << 18, seed=0):
        tokens: Any = table.batch(texts).top_ids[:, 0]
        found = np.bincount(tokens.cpu().numpy(), minlength=len(counts))
        found[: len(counts)] += counts
        counts = found
    counts = np.pad(counts, (0, max(0, n - len(counts))))
    return np.sort(np.argsort(-counts, kind="stable")[:n])
