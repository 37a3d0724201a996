"""How the speed-up falls as streams share a machine: so many answers at once, without end.

Arithmetic where every round has the same shape, rounds played one by one where it has not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from parlay.fleet.arrivals import Arrival
from parlay.fleet.odds import Odds
from parlay.fleet.prices import Prices
from parlay.fleet.simulated_machine import PassShape, SimulatedJob, SimulatedMachine

WINDOWS = (1, 2, 3, 4, 5, 6, 8, 12, 16)
_N_ROUNDS = 200
_ENDLESS = 1 << 30


@dataclass(frozen=True, slots=True)
class Point:
    """One number of streams: plain, and with the best window."""

    n_streams: int
    plain_tps: float  # tokens per second of all streams together
    window: int  # 0: no draft pays
    best_tps: float
    by_window: dict[int, float]  # speed-up of every window

    @property
    def speedup(self) -> float:
        return self.best_tps / self.plain_tps

    def as_dict(self) -> dict[str, Any]:
        """The public JSON form."""
        return {
            "streams": self.n_streams,
            "plain_tokens_per_second": round(self.plain_tps, 3),
            "window": self.window,
            "tokens_per_second": round(self.best_tps, 3),
            "speedup": round(self.speedup, 4),
            "speedup_by_window": {str(k): round(v, 4) for k, v in self.by_window.items()},
        }


def speedups(
    prices: Prices,
    odds: Odds,
    shape: PassShape,
    streams: Sequence[int],
    *,
    n_context: int = 256,
    windows: Sequence[int] = WINDOWS,
) -> list[Point]:
    """A point for every number of streams."""
    return [_point(prices, odds, shape, n, n_context, windows) for n in streams]


def _point(
    prices: Prices, odds: Odds, shape: PassShape, n: int, n_context: int, windows: Sequence[int]
) -> Point:
    plain = _rate(prices, odds, shape, n, 0, n_context)
    allowed = [k for k in windows if k <= _widest(shape, n)]
    rates = {k: _rate(prices, odds, shape, n, k, n_context) for k in allowed}
    window = max(rates, key=lambda k: rates[k], default=0)
    best = rates.get(window, plain)
    if best <= plain:
        window, best = 0, plain
    return Point(n, plain, window, best, {k: rate / plain for k, rate in rates.items()})


def _widest(shape: PassShape, n: int) -> int:
    """The largest window that the batch, or exactness, allows so many sequences."""
    widest = max(0, shape.batch // n - 1)
    if shape.exact is None:
        return widest
    return min(widest, shape.exact.widest(shape.exact.numbers(n)[-1]))


def _rate(
    prices: Prices, odds: Odds, shape: PassShape, n: int, window: int, n_context: int
) -> float:
    """Tokens per second with a window."""
    if (window and odds.offered < 1.0) or shape.exact is not None:
        return _played(prices, odds, shape, n, window, n_context)
    seconds = prices.pass_s(n, window + 1, n_context)
    if window and odds.drafts_by_model:
        seconds += prices.draft_s(window, n)
    return n * odds.expected(window) / seconds


def _played(
    prices: Prices, odds: Odds, shape: PassShape, n: int, window: int, n_context: int
) -> float:
    """Some draft and some do not, so that rounds are unequal: play them."""
    full = replace(shape, slots=n)
    machine = SimulatedMachine(prices, full, odds, lambda _n: window, Random(n * 1000 + window))
    jobs = [SimulatedJob.of(Arrival(0.0, n_context + 1, _ENDLESS, n_context)) for _ in range(n)]
    for job in jobs:
        job.n_pending, job.n_made = 0, 1
        machine.add(job)
    now = 0.0
    for _ in range(_N_ROUNDS):
        for job in jobs:
            job.n_context = n_context
        now = machine.step(now)
    return machine.n_tokens / now


def crossing(points: Sequence[Point]) -> int | None:
    """The first number of streams from which on no window pays; None: it pays at all of them."""
    paying = [point.n_streams for point in points if point.window]
    after = [p.n_streams for p in points if not p.window and p.n_streams > max(paying, default=0)]
    return min(after, default=None)


def best_windows(points: Sequence[Point]) -> dict[int, int]:
    """The window for every number of streams: that of the nearest point not above it."""
    found: dict[int, int] = {}
    for point in points:
        found[point.n_streams] = point.window
    most = max(found, default=0)
    window = 0
    for n in range(1, most + 1):
        window = found.get(n, window)
        found[n] = window
    return found
