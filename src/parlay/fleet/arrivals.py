"""Requests that arrive: from a log, or drawn at random with a given rate.

Knows times and lengths, nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from parlay.errors import BadRequest
from parlay.planning.requests import LoggedRequest


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request: when it comes, how much it reads and how much it is answered."""

    at_s: float
    n_prompt: int
    n_answer: int
    n_reused: int = 0  # of the prompt, already in the cache

    def __post_init__(self) -> None:
        if self.n_prompt < 1 or self.n_answer < 1 or not 0 <= self.n_reused < self.n_prompt:
            raise BadRequest("a request has a prompt and an answer of one token or more")


def poisson(
    shapes: Sequence[tuple[int, int]], rate: float, n_requests: int, seed: int = 0
) -> list[Arrival]:
    """Independent users: `rate` requests a second, each of a length drawn from `shapes`."""
    if rate <= 0 or not shapes:
        raise BadRequest("give a rate above 0 and at least one length")
    rng, now, found = Random(seed), 0.0, []
    for _ in range(n_requests):
        now += rng.expovariate(rate)
        n_prompt, n_answer = shapes[rng.randrange(len(shapes))]
        found.append(Arrival(now, n_prompt, n_answer))
    return found


def from_log(requests: Sequence[LoggedRequest]) -> list[Arrival]:
    """A log's requests in the order of their arrival, the first one at 0."""
    timed = [r for r in requests if r.at_s is not None]
    if not timed:
        raise BadRequest("the log does not say when requests came; use one with `time`")
    first = min(r.at_s for r in timed if r.at_s is not None)
    found = [
        Arrival(
            (r.at_s or first) - first,
            max(1, r.n_prompt),
            r.n_answer,
            min(r.n_reused, max(0, r.n_prompt - 1)),
        )
        for r in timed
    ]
    return sorted(found, key=lambda arrival: arrival.at_s)


def rate_of(arrivals: Sequence[Arrival]) -> float:
    """Requests a second over the whole log."""
    span = arrivals[-1].at_s - arrivals[0].at_s
    return (len(arrivals) - 1) / span if span > 0 else float("inf")


def denser(arrivals: Sequence[Arrival], factor: float) -> list[Arrival]:
    """The same requests, coming so many times as fast."""
    return [Arrival(a.at_s / factor, a.n_prompt, a.n_answer, a.n_reused) for a in arrivals]


def busiest(arrivals: Sequence[Arrival], n: int) -> list[Arrival]:
    """The stretch of so many requests that came in the least time; it starts at 0."""
    if len(arrivals) > n:
        spans = [arrivals[i + n - 1].at_s - arrivals[i].at_s for i in range(len(arrivals) - n + 1)]
        start = min(range(len(spans)), key=lambda i: spans[i])
        arrivals = arrivals[start : start + n]
    first = arrivals[0].at_s
    return [Arrival(a.at_s - first, a.n_prompt, a.n_answer, a.n_reused) for a in arrivals]
