"""A draft model that is ahead of the text: its next bet, as the last one, while its drafts hold.

Knows views and one choice, neither prices nor rates. What it drafted beside the pass is there when
that ends, and nobody's computing hides what is done until the next pass is handed over. So the bet
is made by what it was weighed by the last time, and the last pass is learned from while a device
computes the next one. Now and then it is weighed all the same, for windows grow with what is won.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from parlay.control.betting.stopping import Stopping
from parlay.control.betting.streak import is_again, is_alike
from parlay.control.controller import Choice, View

_MOST = 2  # rounds in a row that are not weighed


class Lead:
    """A bet on a draft model that drafts ahead, and how often it may be made again."""

    __slots__ = ("_choice", "_n_left", "_stopping", "_view")

    def __init__(
        self, view: View, choice: Choice, stopping: Callable[[], Stopping], before: Lead | None
    ) -> None:
        """`stopping`: for another draft, by the same rates and prices; `before`: the bet that was
        weighed last. Only a window that was chosen twice is stayed with."""
        self._view, self._choice, self._stopping = view, choice, stopping
        twice = before is not None and is_again(view, choice, before._view, before._choice)
        self._n_left = _MOST if twice else 0

    def goes_on(self, view: View) -> bool:
        """Whether the text went the draft model's way, and nothing in this view speaks against
        another bet on it."""
        choice, n_ready = self._choice, view.ready.of(self._choice.proposer)
        if not self._n_left or not n_ready or view.max_window < choice.window:
            return False
        went_on = view.n_generated > self._view.n_generated
        if not went_on or not is_alike(view, self._view):
            return False
        return all(len(draft.tokens) < n_ready for draft in view.offers.values())

    def make_again(self, view: View) -> Choice:
        """The bet on this view."""
        self._view, self._n_left = view, self._n_left - 1
        anew = self._stopping()
        return replace(self._choice, keep_going=anew.keep_going, verify=anew.verify)
