"""The passes of one sequence that windows use, run shape by shape: to warm up, or for T(b).

Knows only `Passes`; whoever calls it must be on the thread that owns the model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from parlay.bench.breakeven import CostPoint
from parlay.decoding.span import Passes
from parlay.timing.shape_runs import Shape, Times, time_shapes

N_CONTEXT: Final = 64  # tokens in the cache before a timed pass


def warm_up(passes: Passes, shapes: Sequence[int]) -> list[int]:
    """One pass of every shape that fits; which ones they were."""
    return sorted(_run(passes, shapes, 0, 0.0, time.perf_counter))


def time_passes(
    passes: Passes,
    shapes: Sequence[int],
    n_times: int,
    budget_s: float,
    clock: Callable[[], float] = time.perf_counter,
) -> list[CostPoint]:
    """The fastest of several passes over so many rows."""
    found = _run(passes, shapes, n_times, budget_s, clock)
    return [CostPoint(rows=b, seconds=min(t.steady)) for b, t in sorted(found.items())]


def _run(
    passes: Passes,
    shapes: Sequence[int],
    n_times: int,
    budget_s: float,
    clock: Callable[[], float],
) -> dict[int, Times]:
    n_context = min(N_CONTEXT, max(1, passes.context_size // 4))
    wanted = [Shape(1, b) for b in shapes]
    found = time_shapes(
        passes, wanted, n_times=n_times, budget_s=budget_s, n_context=n_context, clock=clock
    )
    return {shape.n_rows: times for shape, times in found.items()}
