"""The corpus as tensors, and batches of texts of like length out of it.

Knows arrays, not models. A text is a row from position 0 on; what is padded on the right of it can
not be seen from it, so no mask is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from parlay.errors import BadRequest
from parlay_train.corpus import Corpus, Shard, Split, is_held_out, load_shard

_ROUND_UP = 64  # lengths, so that there are few different shapes
_NO_TAIL = -60.0


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """Texts [n, length] and, for every token that the target generated, its distribution."""

    tokens: Any  # int64 [n, length]
    rows: Any  # int64 [m]: places in tokens.view(-1) whose next token was generated
    top_ids: Any  # int64 [m, k]
    top_logprobs: Any  # float16 [m, k]
    tail_logprob: Any  # float16 [m]
    n_answer: NDArray[np.int64]  # generated tokens of each text; the rows are in their order

    @property
    def n_tokens(self) -> int:
        return int(self.tokens.numel())


class Table:
    """Every text of one split. It grows with the corpus when `refresh` is called."""

    def __init__(
        self, corpus: Corpus, split: Split, device: str, *, greedy: bool = False, limit: int = 0
    ) -> None:
        """`greedy`: only answers at temperature 0. `limit`: so many generated tokens at most."""
        self._corpus = corpus
        self._split = split
        self._greedy = greedy
        self._limit = limit
        self._device = torch.device(device)
        self._known: set[Path] = set()
        self._parts: dict[str, list[NDArray[Any]]] = {name: [] for name in _COLUMNS}
        self.n_generated = 0
        self.refresh()

    def refresh(self) -> None:
        """Read shards that were not there before."""
        new = [path for path in self._corpus.paths if path not in self._known]
        for path in new:
            self._known.add(path)
            if not self._limit or self.n_generated < self._limit:
                self._add(load_shard(path))
        if new:
            self._load()

    def _add(self, shard: Shard) -> None:
        chosen = np.array([self._wanted(shard, s) for s in range(len(shard.answer_start))], bool)
        if self._limit:
            room = self._limit - self.n_generated
            chosen &= np.cumsum(_answer_lengths(shard) * chosen) <= room
        rows = np.repeat(chosen, _answer_lengths(shard))
        self._parts["tokens"].append(shard.tokens[np.repeat(chosen, np.diff(shard.offsets))])
        self._parts["length"].append(np.diff(shard.offsets)[chosen])
        self._parts["answer_start"].append(shard.answer_start[chosen].astype(np.int64))
        self._parts["top_ids"].append(shard.top_ids[rows].astype(np.int32))
        self._parts["top_logprobs"].append(shard.top_logprobs[rows])
        self._parts["tail_logprob"].append(shard.tail_logprob[rows])
        self.n_generated += int(rows.sum())

    def _wanted(self, shard: Shard, s: int) -> bool:
        if self._greedy and shard.temperature[s] > 0:
            return False
        if self._split == "all":
            return True
        start = int(shard.offsets[s])
        held_out = is_held_out(shard.tokens[start : start + int(shard.answer_start[s])])
        return held_out == (self._split == "held_out")

    def _load(self) -> None:
        whole = {name: np.concatenate(parts) for name, parts in self._parts.items()}
        self._parts = {name: [array] for name, array in whole.items()}
        self.length: NDArray[np.int64] = whole["length"]
        self.answer_start: NDArray[np.int64] = whole["answer_start"]
        self.n_answer: NDArray[np.int64] = self.length - self.answer_start
        self._offset = np.concatenate([[0], np.cumsum(self.length)])[:-1]
        self._row = np.concatenate([[0], np.cumsum(self.n_answer)])[:-1]
        # Small beside the room of any GPU that trains; a batch is then put together in place.
        self._tokens, self._ids, self._logprobs, self._tail = (
            torch.from_numpy(whole[name]).to(self._device)
            for name in ("tokens", "top_ids", "top_logprobs", "tail_logprob")
        )

    def __len__(self) -> int:
        return len(self.length)

    def batch(self, texts: NDArray[np.int64]) -> TrainingBatch:
        """These texts, padded to the longest."""
        length = -(-int(self.length[texts].max()) // _ROUND_UP) * _ROUND_UP
        n_answer = self.n_answer[texts]
        offset, lengths, starts, row, counts = (
            torch.from_numpy(each[texts]).to(self._device)
            for each in (self._offset, self.length, self.answer_start, self._row, self.n_answer)
        )
        ahead = torch.arange(length, device=self._device)
        places = offset[:, None] + torch.minimum(ahead, lengths[:, None] - 1)
        n_rows = int(n_answer.sum())
        owner = torch.repeat_interleave(
            torch.arange(len(texts), device=self._device), counts, output_size=n_rows
        )
        nth = torch.arange(n_rows, device=self._device) - (counts.cumsum(0) - counts)[owner]
        at = row[owner] + nth
        return TrainingBatch(
            tokens=self._tokens[places].long(),
            # A token is predicted from the place before it.
            rows=owner * length + starts[owner] - 1 + nth,
            top_ids=self._ids[at].long(),
            top_logprobs=self._logprobs[at],
            tail_logprob=self._tail[at],
            n_answer=n_answer,
        )

    def epoch(self, n_tokens: int, seed: int) -> list[NDArray[np.int64]]:
        """Every text once, in batches of about `n_tokens` tokens, in an order of its own."""
        if not len(self):
            raise BadRequest("there is no text to train on; write some first")
        rng = np.random.default_rng(seed)
        order = np.argsort(self.length + rng.uniform(0, _ROUND_UP, len(self)))
        groups = list(_groups(order, self.length, n_tokens))
        rng.shuffle(groups)
        return groups


_COLUMNS = ("tokens", "length", "answer_start", "top_ids", "top_logprobs", "tail_logprob")


def _answer_lengths(shard: Shard) -> NDArray[np.int64]:
    return (np.diff(shard.offsets) - shard.answer_start).astype(np.int64)


def _groups(
    order: NDArray[np.int64], lengths: NDArray[np.int64], n_tokens: int
) -> Iterator[NDArray[np.int64]]:
    at = 0
    while at < len(order):
        size = 1
        # Lengths grow along the order, give or take the noise: the last one is the widest.
        while at + size < len(order) and (size + 1) * lengths[order[at + size]] <= n_tokens:
            size += 1
        yield order[at : at + size]
        at += size


def sharpened(batch: TrainingBatch, temperature: float) -> tuple[Any, Any]:
    """The target's distribution at another temperature: below 1 its first choice weighs more."""
    if temperature == 1.0:
        return batch.top_logprobs, batch.tail_logprob
    logprobs = batch.top_logprobs.float() / temperature
    logprobs = logprobs - torch.logsumexp(logprobs, -1, keepdim=True)
    return logprobs, torch.full_like(batch.tail_logprob, _NO_TAIL)


def concatenated(parts: Sequence[Any]) -> NDArray[Any]:
    return np.concatenate([part.cpu().numpy() for part in parts]) if parts else np.empty(0, bool)
