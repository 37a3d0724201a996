"""Cache care: a cache full of holes is compacted, where that was measured to save time.

Knows sequences and passes, not HTTP. Only a slide past the context leaves holes; every
`cache_compaction_interval` tokens of such an answer one compaction is timed against the passes
before and after it, and one that does not pay makes the next wait twice as long.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from parlay.decoding.span import Span
from parlay.engine.engine import Engine
from parlay.engine.exact.shapes import Inexact
from parlay.engine.sequence import Sequence
from parlay.errors import DecodeError
from parlay.llama.context import Context

log = logging.getLogger("parlay.server")
_MIN_HOLES = 0.1  # of the cells in reach; below, there is nothing to win
_MAX_PATIENCE = 64


@dataclass(frozen=True, slots=True)
class CareTrial:
    """One compaction, timed."""

    cost_s: float
    before_s: float  # a pass over one token
    after_s: float

    def pays(self, n_tokens: int) -> bool:
        return (self.before_s - self.after_s) * n_tokens > self.cost_s


class CacheCare:
    """Looks after the target's cache on the worker's thread, between two rounds."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._done_at: dict[int, int] = {}  # by id of the sequence: tokens when last looked at
        self._patience = 1
        self.n_compactions = 0
        self.last: CareTrial | None = None

    def look(self, interval: int) -> None:
        """Ask the worker to look, unless there is nothing to look at; 0: never."""
        if interval and any(self._holes(seq) for seq in self._engine.active):
            self._engine.call(lambda: self._look(interval))

    def _holes(self, seq: Sequence) -> int:
        return self._engine.target.holes(seq.seq_id, seq.n_cached)

    def _look(self, interval: int) -> None:
        active = self._engine.active
        self._done_at = {key: at for key, at in self._done_at.items() if key in map(id, active)}
        for seq in active:
            since = seq.n_generated - self._done_at.get(id(seq), 0)
            if since >= interval * self._patience and self._has_holes(seq):
                self._compact(seq, interval)

    def _has_holes(self, seq: Sequence) -> bool:
        holes = self._holes(seq)
        return seq.n_pending == 1 and holes >= _MIN_HOLES * (seq.n_cached + holes)

    def _compact(self, seq: Sequence, interval: int) -> None:
        self._done_at[id(seq)] = seq.n_generated
        try:
            self.last = trial(self._engine.target, seq)
        except DecodeError as error:  # its cache is gone: it reads its text again
            log.error("a compaction failed: %s", error)
            self._engine.target.clear(seq.seq_id)
            seq.n_cached = seq.n_firm = 0
            seq.spoil(Inexact.RECOVERY)
            return
        self.n_compactions += 1
        seq.spoil(Inexact.COMPACTION)  # other cells, other rounding than an answer left alone
        seq.n_firm = 0
        pays = self.last.pays(interval)
        self._patience = 1 if pays else min(2 * self._patience, _MAX_PATIENCE)

    def as_dict(self) -> dict[str, Any]:
        """For the metrics."""
        last = self.last
        return {
            "compactions": self.n_compactions,
            "patience": self._patience,
            "last": None
            if last is None
            else {
                "cost_ms": round(last.cost_s * 1e3, 3),
                "before_ms": round(last.before_s * 1e3, 3),
                "after_ms": round(last.after_s * 1e3, 3),
            },
        }


def trial(target: Context, seq: Sequence) -> CareTrial:
    """Compact one sequence and time a pass on either side."""
    before = _pass_s(target, seq)
    began = perf_counter()
    target.compact(seq.seq_id)
    cost = perf_counter() - began
    return CareTrial(cost, before, _pass_s(target, seq))


def _pass_s(target: Context, seq: Sequence, repeats: int = 2) -> float:
    """A pass over the coming token, taken back afterwards."""
    best = float("inf")
    for _ in range(repeats):
        began = perf_counter()
        target.decode([Span(seq.seq_id, seq.n_cached, [seq.tokens[-1]], 1)])
        best = min(best, perf_counter() - began)
        target.truncate(seq.seq_id, seq.n_cached)
    return best
