"""How many machines a stream of requests needs to keep its goals.

Searches over simulations; knows nothing of how they are priced.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from parlay.fleet.simulation import SimulationOutcome

MAX_MACHINES = 1 << 14
_P95 = 1
Simulated = Callable[[int], SimulationOutcome]  # by the number of machines


@dataclass(frozen=True, slots=True)
class Goals:
    """For 95 of 100 requests; None: anything will do."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None

    def kept(self, outcome: SimulationOutcome) -> bool:
        first = self.ttft_ms is None or outcome.ttft_ms[_P95] <= self.ttft_ms
        each = self.tpot_ms is None or outcome.tpot_ms[_P95] <= self.tpot_ms
        return first and each


@dataclass(frozen=True, slots=True)
class Size:
    """The smallest fleet that keeps the goals, or the largest that was tried and did not."""

    n_machines: int
    kept: bool
    outcome: SimulationOutcome


def machines_needed(run: Simulated, goals: Goals, n_requests: int) -> Size:
    """Twice as many until the goals are kept, then halving the doubt."""
    most = min(MAX_MACHINES, max(1, n_requests))
    tried = {1: run(1)}
    n = 1
    while not goals.kept(tried[n]) and n < most:
        n = min(2 * n, most)
        tried[n] = run(n)
    if not goals.kept(tried[n]):
        return Size(n, False, tried[n])
    low, high = n // 2, n
    while high - low > 1:
        middle = (low + high) // 2
        tried[middle] = run(middle)
        low, high = (low, middle) if goals.kept(tried[middle]) else (middle, high)
    return Size(high, True, tried[high])
