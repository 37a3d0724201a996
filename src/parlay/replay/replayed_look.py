"""Drafts of a replay that are only compared with the text, and when that is known.

Knows recordings and a drafter's prices; nothing of passes. As `engine/looking.py` does it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from parlay.control.looks import IN_A_ROW
from parlay.control.prices.drafter_cost import DrafterCost
from parlay.decoding.draft import Look
from parlay.replay.recording import Recording


@dataclass(slots=True)
class ReplayedLook:
    """One draft, or several one after the other beside the target's passes."""

    proposer: str
    window: int
    beside: bool
    drafter: DrafterCost | None = None
    found: list[Look] = field(default_factory=list)
    left_s: float = 0.0  # of the draft that is being made
    _ends: int = 0  # the position at which the last one is known
    _ended: bool = False

    def begin(self, recording: Recording, position: int, n_missing: int) -> tuple[float, ...]:
        """The next one, from here; its confidences."""
        offer = recording.offers[self.proposer][position]
        drafted = offer.confidence[: self.window]
        n_right = min(len(drafted), offer.n_accepted)
        self.found.append(Look(self.proposer, n_right, drafted))
        self._ends = position + min(n_right + 1, len(drafted))
        if self.beside and self.drafter is not None:
            self.left_s = self.drafter.draft_s(min(self.window, n_right + 1), n_missing)
        return drafted

    def go_on(self, recording: Recording, position: int) -> None:
        """The last one is known: another, unless that was enough."""
        if len(self.found) == IN_A_ROW:
            self.end()
        else:
            self.begin(recording, position, max(1, position - self._ends + 1))

    def end(self) -> None:
        self._ended = True

    def is_seen(self, position: int) -> bool:
        """Whether the last one is known."""
        return position >= self._ends and self.left_s <= 0.0

    def is_over(self, position: int) -> bool:
        """Whether all are."""
        return self._ended if self.beside else position >= self._ends
