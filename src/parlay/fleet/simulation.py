"""Machines side by side under one stream of requests: a discrete-event simulation.

Pure and seeded: the same input gives the same figures. Every request is answered once.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from parlay.fleet.arrivals import Arrival
from parlay.fleet.odds import Odds
from parlay.fleet.prices import Prices
from parlay.fleet.simulated_machine import PassShape, SimulatedJob, SimulatedMachine, Windows, plain


@dataclass(frozen=True, slots=True)
class Way:
    """How machines decode: with which odds and windows, or plainly."""

    odds: Odds | None = None
    windows: Windows = plain


@dataclass(frozen=True, slots=True)
class SimulationOutcome:
    """What became of a stream of requests."""

    n_requests: int
    span_s: float  # from the first arrival to the last answer's end
    utilisation: float  # share of the machines' time spent in steps
    tokens_per_s: float
    ttft_ms: tuple[float, float, float]  # median, 95th and 99th percentile
    tpot_ms: tuple[float, float, float]
    queue_ms: tuple[float, float, float]

    def as_dict(self) -> dict[str, Any]:
        """The public JSON form."""
        named = ("p50", "p95", "p99")
        return {
            "requests": self.n_requests,
            "seconds": round(self.span_s, 3),
            "utilisation": round(self.utilisation, 4),
            "tokens_per_second": round(self.tokens_per_s, 3),
            **{
                name: {p: round(v, 3) for p, v in zip(named, getattr(self, name), strict=True)}
                for name in ("ttft_ms", "tpot_ms", "queue_ms")
            },
        }


def simulate(
    arrivals: Sequence[Arrival],
    prices: Prices,
    shape: PassShape,
    way: Way,
    *,
    n_machines: int = 1,
    seed: int = 0,
) -> tuple[SimulationOutcome, list[SimulatedJob]]:
    """Answer every request; each goes to the machine with the fewest."""
    rng = Random(seed)
    machines = [
        SimulatedMachine(prices, shape, way.odds, way.windows, Random(rng.getrandbits(64)))
        for _ in range(n_machines)
    ]
    jobs = [SimulatedJob.of(arrival) for arrival in arrivals]
    end = _run(machines, jobs)
    return _outcome(machines, jobs, end), jobs


def _run(machines: Sequence[SimulatedMachine], jobs: Sequence[SimulatedJob]) -> float:
    """Steps in the order of their time; arrivals come in between. Returns when all is done."""
    waiting = deque(jobs)
    free: list[tuple[float, int]] = []  # when a machine that is in a step will be out of it
    desk = _Desk(len(machines))
    while free or waiting:
        if waiting and (not free or waiting[0].arrival.at_s <= free[0][0]):
            job = waiting.popleft()
            i = desk.choose()
            machines[i].add(job)
            if desk.wake(i):
                heapq.heappush(free, (job.arrival.at_s, i))
            continue
        now, i = heapq.heappop(free)
        desk.tell(i, machines[i].load)
        if machines[i].load:
            heapq.heappush(free, (machines[i].step(now), i))
        else:
            desk.idle(i)
    return max((job.done_s for job in jobs), default=0.0)


class _Desk:
    """Sends each request to the machine with the fewest, as far as the machines have told.

    What a step will have finished is not known before the step is over.
    """

    def __init__(self, n_machines: int) -> None:
        self._loads = [0] * n_machines
        self._asleep = [True] * n_machines
        # Entries that no longer hold are dropped when they come up.
        self._least = [(0, i) for i in range(n_machines)]

    def choose(self) -> int:
        while True:
            load, i = heapq.heappop(self._least)
            if self._loads[i] == load:
                self.tell(i, load + 1)
                return i

    def tell(self, i: int, load: int) -> None:
        if self._loads[i] != load:
            self._loads[i] = load
            heapq.heappush(self._least, (load, i))

    def wake(self, i: int) -> bool:
        """Whether it was idle until now."""
        was, self._asleep[i] = self._asleep[i], False
        return was

    def idle(self, i: int) -> None:
        self._asleep[i] = True


def _outcome(
    machines: Sequence[SimulatedMachine], jobs: Sequence[SimulatedJob], end: float
) -> SimulationOutcome:
    start = min((job.arrival.at_s for job in jobs), default=0.0)
    span = max(end - start, 1e-12)
    n_tokens = sum(machine.n_tokens for machine in machines)
    several = [job for job in jobs if job.n_made > 1]
    return SimulationOutcome(
        n_requests=len(jobs),
        span_s=span,
        utilisation=sum(machine.busy_s for machine in machines) / (span * len(machines)),
        tokens_per_s=n_tokens / span,
        ttft_ms=percentiles([job.ttft_s for job in jobs]),
        tpot_ms=percentiles([job.tpot_s for job in several]),
        queue_ms=percentiles([job.started_s - job.arrival.at_s for job in jobs]),
    )


def percentiles(seconds: Sequence[float]) -> tuple[float, float, float]:
    """Median, 95th and 99th, in milliseconds; zeros where there is nothing."""
    if not seconds:
        return 0.0, 0.0, 0.0
    ordered = sorted(seconds)
    last = len(ordered) - 1
    p50, p95, p99 = (1e3 * ordered[min(last, round(q * last))] for q in (0.5, 0.95, 0.99))
    return p50, p95, p99
