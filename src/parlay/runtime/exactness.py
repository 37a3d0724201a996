"""Which passes give bit for bit what single-token passes give, found by trying.

Knows only `Passes`. llama.cpp picks kernels by shape and kernels round differently; nothing but a
probe on this build, device, file and cache type can tell which shapes agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from parlay.decoding.span import Passes, Span
from parlay.timing.probe_text import probe_tokens, read, rewind

MIN_USEFUL_WINDOW = 3


@dataclass(frozen=True, slots=True)
class ExactShapes:
    """Row counts of a pass whose logits and cache equal those of single-token passes."""

    rows: frozenset[int]
    concurrent: bool  # whether the same holds for passes over several sequences

    @property
    def limit(self) -> int:
        """Every count up to this one is exact (llama.cpp may split a pass, so holes count)."""
        n = 1
        while n + 1 in self.rows:
            n += 1
        return n

    @property
    def useful(self) -> bool:
        return self.limit > MIN_USEFUL_WINDOW

    def window(self, wanted: int, n_sequences: int) -> int:
        """The largest window up to `wanted` that keeps a pass over so many sequences exact."""
        if n_sequences == 1:
            return max((k for k in range(wanted + 1) if k + 1 in self.rows), default=0)
        return max(0, min(wanted, self.limit // n_sequences - 1))

    def holds(self, n_rows: int, n_sequences: int) -> bool:
        """Whether a pass of this shape is exact."""
        if n_sequences == 1:
            return n_rows in self.rows
        return self.concurrent and n_rows <= self.limit


@dataclass(frozen=True, slots=True)
class Probe:
    """What a probe found, and whether it had the time to look at everything."""

    shapes: ExactShapes
    complete: bool


NOTHING_EXACT = ExactShapes(frozenset({1}), concurrent=False)

# A shape must agree in unrelated contexts, since one can agree by chance. Attention kernels switch
# with the length of the context too (ggml splits it past 256 cells, for single tokens only), which
# one longer context shows.
_SHORT, _OTHER, _LONG = 24, 9, 264


def probe(passes: Passes, max_rows: int, n_sequences: int, budget_s: float = 60.0) -> Probe:
    """Compare passes over 2 to `max_rows` rows with single-token ones, within a time budget."""
    budget = _Budget(budget_s, perf_counter())
    every = frozenset(range(2, max_rows + 1))
    contexts = [n for n in (_SHORT, _OTHER, _LONG) if n + max_rows <= passes.context_size]
    rows, complete = every if contexts else frozenset(), True
    for n_prefix in contexts:
        tried = rows if n_prefix == _SHORT or rows != every else _few(n_prefix, max_rows)
        agreed, in_time = _probe_after(passes, n_prefix, tried, budget)
        if agreed != tried and tried != rows:  # a few no longer stand for all
            agreed, in_time = _probe_after(passes, n_prefix, rows, budget)
            tried = rows
        rows -= tried - agreed
        complete &= in_time
    rows |= {1}
    limit = ExactShapes(rows, concurrent=True).limit
    concurrent = n_sequences > 1 and limit > 1 and _probe_concurrent(passes, n_sequences, limit)
    return Probe(ExactShapes(rows, concurrent), complete)


def _few(n_prefix: int, max_rows: int) -> frozenset[int]:
    """Shapes that stand for all of them, once all of them agreed in one context."""
    small = 8 if n_prefix == _OTHER else 3
    return frozenset({*range(2, min(small, max_rows) + 1), max_rows})


@dataclass(slots=True)
class _Budget:
    """Time for the probe. On a busy machine it counts rows at the speed of the fastest single pass
    seen, which makes the probe slower, not blinder; a model that is slow by itself gets fewer."""

    seconds: float
    started: float
    fastest_s: float = float("inf")
    n_rows: int = 0

    @property
    def spent(self) -> bool:
        return min(perf_counter() - self.started, self.n_rows * self.fastest_s) > self.seconds


def _probe_after(
    passes: Passes, n_prefix: int, shapes: frozenset[int], budget: _Budget
) -> tuple[frozenset[int], bool]:
    """The shapes that agree after a prefix, and whether there was time for all of them."""
    if not shapes:
        return shapes, True
    tokens = probe_tokens(n_prefix + max(shapes), passes.n_vocab, offset=n_prefix)
    prefix, rest = tokens[:n_prefix], tokens[n_prefix:]
    agreed: set[int] = set()
    try:
        read(passes, prefix)
        single = _singles(passes, 0, n_prefix, rest, budget)
        budget.n_rows += len(tokens)
        for b in sorted(shapes):
            budget.n_rows += b
            if budget.spent:
                return frozenset(agreed), False
            if _agrees(passes, prefix, rest[:b], single):
                agreed.add(b)
        return frozenset(agreed), True
    finally:
        passes.clear(0)


def _singles(
    passes: Passes, seq_id: int, start: int, tokens: Sequence[int], budget: _Budget
) -> list[NDArray[np.float32]]:
    rows = []
    for i, token in enumerate(tokens):
        started = perf_counter()
        rows.append(passes.decode([Span(seq_id, start + i, [token], 1)])[0][0].copy())
        budget.fastest_s = min(budget.fastest_s, perf_counter() - started)
    return rows


def _agrees(
    passes: Passes,
    prefix: Sequence[int],
    tokens: Sequence[int],
    single: Sequence[NDArray[np.float32]],
) -> bool:
    """One pass over all tokens; each row also reads what the pass wrote to the cache before it."""
    rewind(passes, prefix)
    rows = passes.decode([Span(0, len(prefix), tokens, len(tokens))])[0]
    return all(np.array_equal(row, one) for row, one in zip(rows, single, strict=False))


def _probe_concurrent(passes: Passes, n_sequences: int, limit: int) -> bool:
    """All sequences in one pass, as many rows each as stay within the limit."""
    n = max(1, min(limit // n_sequences, 4))
    start = 8
    texts = [probe_tokens(start + n, passes.n_vocab, offset=s + 1) for s in range(n_sequences)]
    single = []
    try:
        for s, text in enumerate(texts):
            passes.decode([Span(s, 0, text[:start], 0)])
            single.append(_singles(passes, s, start, text[start:], _Budget(0, 0)))
            passes.clear(s)
            passes.decode([Span(s, 0, text[:start], 0)])
        spans = [Span(s, start, text[start:], n) for s, text in enumerate(texts)]
        together = passes.decode(spans)
        return all(
            np.array_equal(rows[i], single[s][i])
            for s, rows in enumerate(together)
            for i in range(n)
        )
    finally:
        for s in range(n_sequences):
            passes.clear(s)
