"""A draft model that is ahead of the text: its next bet, as the last one, while its drafts hold.

Knows views and one choice, neither prices nor rates. What it drafted beside the pass is there when
that ends, and nobody's computing hides what is done until the next pass is handed over. So the bet
is made by what it was weighed by the last time, and the last pass is learned from while a device
computes the next one. Now and then it is weighed all the same, for windows grow with what is won.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from parlay.control.betting.repeat import Repeat
from parlay.control.betting.stopping import Stopping
from parlay.control.controller import Choice, View

_MOST = 2  # rounds in a row that are not weighed


class Lead(Repeat):
    """A bet on a draft model that drafts ahead."""

    __slots__ = ("_stopping",)

    def __init__(
        self, view: View, choice: Choice, stopping: Callable[[], Stopping], before: Repeat | None
    ) -> None:
        """`stopping`: for another draft, by the same rates and prices."""
        super().__init__(view, choice, before, _MOST)
        self._stopping = stopping

    def goes_on(self, view: View) -> bool:
        """Whether the text went the draft model's way, and nothing in this view speaks against
        another bet on it."""
        n_ready = view.ready.of(self._choice.proposer)
        if not n_ready or view.n_generated <= self._view.n_generated or not self._may(view):
            return False
        return all(len(draft.tokens) < n_ready for draft in view.offers.values())

    def make_again(self, view: View) -> Choice:
        """The bet on this view, with a draft of its own to be stopped."""
        choice, anew = super().make_again(view), self._stopping()
        return replace(choice, keep_going=anew.keep_going, verify=anew.verify)
