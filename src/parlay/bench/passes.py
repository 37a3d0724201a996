"""Runs a model's passes shape by shape, to warm them up or to time them.

Knows only `Passes`; whoever calls it must be on the thread that owns the model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from parlay.bench.breakeven import CostPoint
from parlay.decoding.span import Passes, Span

N_CONTEXT: Final = 64  # tokens in the cache before a timed pass
_SPREAD: Final = 7919  # a prime: tokens jump about the vocabulary


def warm_up(passes: Passes, shapes: Sequence[int]) -> list[int]:
    """One pass of every shape that fits; which ones they were."""
    time_passes(passes, shapes, n_times=0, budget_s=0.0)
    return _fitting(passes, shapes)


def _fitting(passes: Passes, shapes: Sequence[int]) -> list[int]:
    return [b for b in shapes if _n_context(passes) + b <= passes.context_size]


def _n_context(passes: Passes) -> int:
    return min(N_CONTEXT, max(1, passes.context_size // 4))


def time_passes(
    passes: Passes,
    shapes: Sequence[int],
    n_times: int,
    budget_s: float,
    clock: Callable[[], float] = time.perf_counter,
) -> list[CostPoint]:
    """Round after round over all shapes, so that a slow moment does not hit one shape only."""
    deadline = clock() + budget_s
    n_context, fitting = _n_context(passes), _fitting(passes, shapes)
    tokens = [(i * _SPREAD + 11) % passes.n_vocab for i in range(n_context + max(fitting))]
    passes.clear(0)
    passes.decode([Span(0, 0, tokens[:n_context], 0)])
    best: dict[int, float] = {}
    for turn in range(n_times + 1):
        for b in fitting:
            if turn > 1 and clock() > deadline:
                break
            took = _time(passes, tokens[n_context : n_context + b], n_context, clock)
            if turn > 0:  # the first turn warms every shape
                best[b] = min(took, best.get(b, took))
    passes.clear(0)
    return [CostPoint(rows=b, seconds=s) for b, s in sorted(best.items())]


def _time(passes: Passes, tokens: Sequence[int], start: int, clock: Callable[[], float]) -> float:
    began = clock()
    passes.decode([Span(0, start, tokens, len(tokens))])
    took = clock() - began
    passes.truncate(0, start)
    return max(took, 1e-9)
