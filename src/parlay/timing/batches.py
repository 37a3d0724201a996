"""Measures what passes over many sequences cost: a table of up to 512 rows, for planning.

Knows only `Passes`. The controller's own table (`measuring.py`) is made in two seconds at start-up
and holds the shapes one engine uses; this one is made once and tells what a fuller machine would.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from parlay.control.prices.cost import CostTable
from parlay.control.prices.curve import MAX_ROWS, Curve
from parlay.control.prices.drafter_cost import DrafterCost
from parlay.decoding.span import Passes
from parlay.timing.measuring import LARGEST_SPREAD, OVERHEAD_S, seconds_per_choice
from parlay.timing.shape_runs import Clock, TimedShape, Times, time_shapes

Progress = Callable[[str], None]

# Kernels switch at 8, 16, 32 and so on; around those, and at powers of two.
_SEQUENCES = (1, 2, 3, 4, 6, 8, 9, 12, 16, 17, 24, 32, 48, 64, 96, 128, 192, 256)
_ROWS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 17)
_WIDE = (24, 32, 64, 128, 256, MAX_ROWS)  # of one sequence
_PROMPT = (16, 32, 64, 128, 256, MAX_ROWS)
_SHORT_TEXT = 64


def batch_shapes(max_sequences: int) -> list[TimedShape]:
    """The shapes worth knowing, those that matter most first."""
    return list(dict.fromkeys(_shapes(max_sequences)))


def _shapes(max_sequences: int) -> Iterator[TimedShape]:
    sequences = [n for n in _SEQUENCES if n <= max_sequences]
    yield from (TimedShape(n, 1) for n in sequences)
    yield from (TimedShape(1, rows, reads_logits=False) for rows in _PROMPT)
    for rows in (2, 4, 6, 9, 17, *_ROWS):
        yield from (TimedShape(n, rows) for n in sequences if n * rows <= MAX_ROWS)
    yield from (TimedShape(1, rows) for rows in _WIDE)


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """What to time, and how long that may take."""

    max_sequences: int
    contexts: tuple[int, ...] = (_SHORT_TEXT,)
    n_times: int = 3
    budget_s: float = 60.0


def measure_batches(
    target: Passes,
    plan: BatchPlan,
    drafter: Passes | None = None,
    *,
    name: str = "measured",
    origin: str = "measured",
    progress: Progress = lambda _line: None,
    clock: Clock = time.perf_counter,
) -> CostTable:
    """A cost table by context, sequences and rows; what the budget leaves out is interpolated."""
    share = plan.budget_s / (len(plan.contexts) + (0.25 if drafter is not None else 0.0))
    found = {n: _times(target, plan, n, share, clock, progress) for n in plan.contexts}
    choice_s = seconds_per_choice(target.n_vocab, clock)
    curves = {
        (n_context, n): _curve(times, n, OVERHEAD_S, choice_s)
        for n_context, times in found.items()
        for n in sorted({shape.n_sequences for shape, t in times.items() if t.best_known})
    }
    first = found[plan.contexts[0]]
    return CostTable(
        curves,
        _drafter_cost(drafter, plan.max_sequences, 0.25 * share, choice_s, clock, progress),
        prompt=_prompt_curve(first),
        name=name,
        origin=origin,
        stable=_is_stable(first),
    )


def _times(
    target: Passes,
    plan: BatchPlan,
    n_context: int,
    budget_s: float,
    clock: Clock,
    progress: Progress,
) -> Mapping[TimedShape, Times]:
    return time_shapes(
        target,
        batch_shapes(plan.max_sequences),
        n_times=plan.n_times,
        budget_s=budget_s,
        n_context=n_context,
        chunk=MAX_ROWS,
        warm=target.steady,
        whole=False,
        clock=clock,
        progress=progress,
    )


def _drafter_cost(
    drafter: Passes | None,
    max_sequences: int,
    budget_s: float,
    choice_s: float,
    clock: Clock,
    progress: Progress,
) -> DrafterCost | None:
    """A drafter's curve is by sequences: each step drafts one token for every one of them."""
    if drafter is None:
        return None
    wanted = [TimedShape(n, 1) for n in _SEQUENCES if n <= max_sequences]
    # Wider passes are those with which it catches up on one sequence.
    wanted += [TimedShape(1, rows, reads_logits=False) for rows in _PROMPT if rows > max_sequences]
    times = time_shapes(
        drafter,
        wanted,
        n_times=5,
        budget_s=budget_s,
        n_context=_SHORT_TEXT,
        chunk=MAX_ROWS,
        clock=clock,
        progress=lambda line: progress(f"drafter, {line}"),
    )
    steady = {s.total: median(t.best_known) + s.total * choice_s for s, t in times.items()}
    changed = {
        s.total: median(t.changed) + s.total * choice_s for s, t in times.items() if t.changed
    }
    return DrafterCost(Curve(steady, changed), single_steps=drafter.steady)


def _curve(
    times: Mapping[TimedShape, Times], n_sequences: int, fixed_s: float, choice_s: float
) -> Curve:
    own = {s: t for s, t in times.items() if s.n_sequences == n_sequences and s.reads_logits}

    def price(seconds: Sequence[float], shape: TimedShape) -> float:
        return median(seconds) + fixed_s + shape.total * choice_s

    steady = {s.total: price(t.best_known, s) for s, t in own.items() if t.best_known}
    changed = {s.total: price(t.changed, s) for s, t in own.items() if t.changed}
    settling = [price(t.settling, s) - steady[s.total] for s, t in own.items() if t.settling]
    return Curve(steady, changed, max(0.0, median(settling)) if settling else 0.0)


def _prompt_curve(times: Mapping[TimedShape, Times]) -> Curve | None:
    prompts = {s.total: t.best_known for s, t in times.items() if not s.reads_logits}
    own = {rows: median(seconds) for rows, seconds in prompts.items() if seconds}
    return Curve(own, {}) if own else None


def _is_stable(times: Mapping[TimedShape, Times]) -> bool:
    """Whether equal passes took equal time, for most shapes."""
    spreads = []
    for t in times.values():
        if len(t.steady) >= 2:
            low, middle, high = quantiles(t.steady, n=4, method="inclusive")
            spreads.append((high - low) / middle)
    return bool(spreads) and median(spreads) <= LARGEST_SPREAD
