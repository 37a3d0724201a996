"""A controller that passes everything on to another one and counts the rounds that go by.

Knows no HTTP. It runs on the worker's thread; readers on other threads see whole numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from parlay.control.controller import Choice, Controller, View
from parlay.decoding.counts import Counts
from parlay.decoding.round import Round
from parlay.server.baseline import Baseline

RECENT_ROUNDS = 400


class Observer:
    """Counts of the whole server."""

    def __init__(self, controller: Controller) -> None:
        self.controller = controller  # may be exchanged between two rounds
        self.counts = Counts()
        self.baseline = Baseline()
        self.recent: deque[Round] = deque(maxlen=RECENT_ROUNDS)
        # A pass is shared by its sequences: its time is counted once here.
        self.draft_s = self.verify_s = self.overhead_s = 0.0

    def choose(self, views: Sequence[View]) -> list[Choice]:
        return self.controller.choose(views)

    def observe(self, rounds: Sequence[Round]) -> None:
        for found in rounds:
            self.counts.observe(found)
        self.recent.extend(rounds)
        timing = rounds[0].timing
        self.draft_s += timing.draft_s
        self.verify_s += timing.verify_s
        self.overhead_s += timing.overhead_s
        self.baseline.observe(rounds)
        self.controller.observe(rounds)

    def recent_counts(self) -> Counts:
        """The last few hundred rounds."""
        counts = Counts()
        for found in tuple(self.recent):
            counts.observe(found)
        return counts
