"""A text that is copied: the same free bet round after round, as long as all of it holds.

Knows views and one choice, neither prices nor rates. What the last round showed can only speak for
such a bet, so it need not be learned first: a device is given the next pass at once, and the
learning is done while it computes. Now and then it is weighed all the same, for prices change.
"""

from __future__ import annotations

from parlay.control.controller import Choice, View
from parlay.decoding.draft import Draft

_MOST = 8  # rounds in a row that are not weighed


class Streak:
    """A bet that was weighed, and how often it may be made again."""

    __slots__ = ("_choice", "_n_left", "_sure", "_view")

    def __init__(self, view: View, choice: Choice, before: Streak | None) -> None:
        """`before`: the bet that was weighed last. Windows grow with what is won, round by round:
        only one that was chosen twice is stayed with."""
        self._view, self._choice = view, choice
        twice = before is not None and is_again(view, choice, before._view, before._choice)
        self._n_left = _MOST if twice else 0
        self._sure = _least(view.offers[choice.proposer], choice.window)

    def goes_on(self, view: View) -> bool:
        """Whether all of the last bet held, and nothing in this view speaks against another."""
        last, window = self._view, self._choice.window
        if not self._n_left or view.n_generated != last.n_generated + window + 1:
            return False
        if view.max_window < window:  # a guard may have narrowed it, whatever is offered
            return False
        found = view.offers.get(self._choice.proposer)
        if found is None or len(found.tokens) < window or _least(found, window) < self._sure:
            return False
        before = last.offers
        return is_alike(view, last) and all(
            len(draft.tokens) <= len(before[name].tokens) for name, draft in view.offers.items()
        )

    def make_again(self, view: View) -> Choice:
        """The bet on this view."""
        self._view, self._n_left = view, self._n_left - 1
        return self._choice


def is_again(view: View, choice: Choice, last: View, before: Choice) -> bool:
    """Whether a bet is the last one once more: on the same answer, as wide, by the same."""
    same_text = (view.seq_id, view.answer) == (last.seq_id, last.answer)
    same_bet = (choice.proposer, choice.window) == (before.proposer, before.window)
    return same_text and same_bet


def is_alike(view: View, last: View) -> bool:
    """Whether nothing was asked for or seen since the last bet on one text, but for what is offered
    and how wide drafts may be: that is less near an end."""
    same = view.seq_id == last.seq_id and view.thinking == last.thinking
    same = same and view.floor == last.floor and view.proposers == last.proposers
    if not same or view.window is not None or view.fallback is not None:
        return False
    told = view.looks is not None or view.shown or view.ready.read_s
    return not told and view.offers.keys() == last.offers.keys()


def _least(draft: Draft, n: int) -> float:
    """The least of its first confidences."""
    return min(draft.confidence[:n], default=0.0)
