"""Prices that the choice of an exact class hangs on, timed so that a busy machine misleads little.

Knows passes and classes, not what is chosen. Shapes are timed in turns, so that a slow moment hits
all of them, and of several times the shortest counts: other work only makes them longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from time import perf_counter

from parlay.control.prices.cost import CostTable
from parlay.control.prices.curve import Curve
from parlay.decoding.span import Passes
from parlay.engine.exact.exactness import ExactClass
from parlay.timing.measuring import OVERHEAD_S, numbers_up_to
from parlay.timing.shape_runs import Clock, TimedShape, Times, time_shapes

_N_TURNS = 6
_N_CONTEXT = 24
_ROWS = (1, 2, 4, 8, 16)  # of one sequence; and those at which classes begin and end
_ROWS_EACH = (1, 2, 4)  # of several
_MOST_ROWS = 17
# The two shortest times of a shape differ by no more than this on a machine that is idle enough.
_LARGEST_SPREAD = 0.1


def class_prices(
    passes: Passes,
    classes: Sequence[ExactClass],
    n_slots: int,
    *,
    budget_s: float,
    clock: Clock = perf_counter,
) -> CostTable:
    """What the passes cost that tell these classes apart; stable if the times can be believed."""
    found = time_shapes(
        passes,
        wanted(classes, n_slots),
        n_times=_N_TURNS,
        budget_s=budget_s,
        n_context=_N_CONTEXT,
        warm=False,
        whole=False,
        clock=clock,
    )
    numbers = sorted({shape.n_sequences for shape, times in found.items() if times.best_known})
    return CostTable(
        {(1, n): _curve(found, n) for n in numbers},
        name="classes",
        origin="measured at start-up, to choose an exact class",
        stable=_is_stable(found),
    )


def wanted(classes: Iterable[ExactClass], n_slots: int) -> list[TimedShape]:
    """The shapes to time, the cheapest first: a slow model gets no further."""
    ends = chain.from_iterable((c.floor, c.limit, max(c.widths)) for c in classes)
    alone = {TimedShape(1, rows) for rows in (*_ROWS, *ends) if rows <= _MOST_ROWS}
    several = {TimedShape(n, rows) for n in numbers_up_to(n_slots) for rows in _ROWS_EACH}
    return sorted(alone | several, key=lambda shape: (shape.total, shape.n_sequences))


def _curve(found: Mapping[TimedShape, Times], n_sequences: int) -> Curve:
    return Curve(
        {
            shape.total: min(times.best_known) + OVERHEAD_S
            for shape, times in found.items()
            if shape.n_sequences == n_sequences and times.best_known
        },
        {},
    )


def _is_stable(found: Mapping[TimedShape, Times]) -> bool:
    """Whether the shortest times were no chance, as far as there was time for two of them."""
    fastest = [sorted(times.best_known)[:2] for times in found.values()]
    several = [two for two in fastest if len(two) == 2]
    return bool(several) and all(b - a <= _LARGEST_SPREAD * a for a, b in several)
