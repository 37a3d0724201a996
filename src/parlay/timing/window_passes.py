"""Passes of the shapes that windows use, and plain ones: run to warm up, or timed for T(b).

Knows only `Passes`; whoever calls it must be on the thread that owns the model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Final

from parlay.decoding.span import Passes, Span
from parlay.timing.probe_text import real_tokens
from parlay.timing.shape_runs import TimedShape, Times, time_shapes

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
) -> dict[int, float]:
    """Seconds of a pass by its rows, the fastest of several: other jobs only ever add time."""
    found = _run(passes, shapes, n_times, budget_s, clock)
    return {b: min(t.best_known) for b, t in sorted(found.items())}


def _run(
    passes: Passes,
    shapes: Sequence[int],
    n_times: int,
    budget_s: float,
    clock: Callable[[], float],
) -> dict[int, Times]:
    n_context = min(N_CONTEXT, max(1, passes.context_size // 4))
    wanted = [TimedShape(1, b) for b in shapes]
    found = time_shapes(
        passes, wanted, n_times=n_times, budget_s=budget_s, n_context=n_context, clock=clock
    )
    return {shape.n_rows: times for shape, times in found.items()}


def time_plain(target: Passes, n_sequences: int, repeats: int = 3) -> float:
    """The time of a plain pass, on empty slots; they are empty again afterwards."""
    times = []
    try:
        for i in range(repeats + 1):
            spans = [Span(s, i, real_tokens(target, 1, place=s + i), 1) for s in range(n_sequences)]
            started = time.perf_counter()
            target.decode(spans)
            times.append(time.perf_counter() - started)
    finally:
        for s in range(n_sequences):
            target.clear(s)
    return median(times[1:])  # the first of a new shape is slower
