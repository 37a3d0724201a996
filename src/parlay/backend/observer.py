"""Counts the rounds that go by, for the whole server.

A listener: it chooses nothing and knows no HTTP. It runs on the worker's thread; readers on other
threads see whole numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from parlay.backend.plain_speed import PlainSpeed
from parlay.decoding.counts import Counts
from parlay.decoding.round import Round

RECENT_ROUNDS = 400


@dataclass(frozen=True, slots=True)
class Recent:
    """The last few hundred rounds in four numbers."""

    n_rounds: int
    n_drafted: int
    n_accepted: int
    n_fallbacks: int

    @property
    def fallback_share(self) -> float:
        return self.n_fallbacks / self.n_rounds if self.n_rounds else 0.0


class Observer:
    """Counts of the whole server."""

    def __init__(self) -> None:
        self.counts = Counts()
        self.baseline = PlainSpeed()
        self.recent: deque[Round] = deque(maxlen=RECENT_ROUNDS)
        # A pass is shared by its sequences: its time is counted once here.
        self.draft_s = self.verify_s = self.overhead_s = 0.0

    def observe(self, rounds: Sequence[Round]) -> None:
        for found in rounds:
            self.counts.observe(found)
        self.recent.extend(rounds)
        timing = rounds[0].timing
        self.draft_s += timing.draft_s
        self.verify_s += timing.verify_s
        self.overhead_s += timing.overhead_s
        self.baseline.observe(rounds)

    def observe_read(self, rounds: Sequence[Round]) -> None:
        """First tokens that came with their prompts: in the sums, as in an answer's own; they say
        nothing of how fast rounds are."""
        for found in rounds:
            self.counts.observe(found)

    def recent_sums(self) -> Recent:
        """The same in a tenth of the time, for whoever looks every second."""
        rounds = tuple(self.recent)
        return Recent(
            n_rounds=len(rounds),
            n_drafted=sum(r.n_drafted for r in rounds),
            n_accepted=sum(r.n_accepted for r in rounds),
            n_fallbacks=sum(r.fallback is not None and not r.fallback.is_choice for r in rounds),
        )

    def recent_counts(self) -> Counts:
        """The last few hundred rounds."""
        counts = Counts()
        for found in tuple(self.recent):
            counts.observe(found)
        return counts
