"""A text that is copied: the same free bet round after round, as long as all of it holds.

Knows views and one choice, neither prices nor rates. What the last round showed can only speak for
such a bet, so it need not be learned first: a device is given the next pass at once, and the
learning is done while it computes. Now and then it is weighed all the same, for prices change.
"""

from __future__ import annotations

from parlay.control.betting.repeat import Repeat
from parlay.control.controller import Choice, View
from parlay.decoding.draft import Draft

_MOST = 8  # rounds in a row that are not weighed


class Streak(Repeat):
    """A bet on what a free proposer offers."""

    __slots__ = ("_sure",)

    def __init__(self, view: View, choice: Choice, before: Repeat | None) -> None:
        super().__init__(view, choice, before, _MOST)
        self._sure = _least(view.offers[choice.proposer], choice.window)

    def goes_on(self, view: View) -> bool:
        """Whether all of the last bet held, and nothing in this view speaks against another: as
        much is offered, as surely, and by nobody more."""
        last, window = self._view, self._choice.window
        if view.n_generated != last.n_generated + window + 1 or not self._may(view):
            return False
        found = view.offers.get(self._choice.proposer)
        if found is None or len(found.tokens) < window or _least(found, window) < self._sure:
            return False
        before = last.offers
        return all(len(draft.tokens) <= len(before[n].tokens) for n, draft in view.offers.items())


def _least(draft: Draft, n: int) -> float:
    """The least of its first confidences."""
    return min(draft.confidence[:n], default=0.0)
