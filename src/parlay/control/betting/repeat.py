"""A bet on one text that may be made again without being weighed.

Knows views and one choice, neither prices nor rates, nor whose drafts they are.
"""

from __future__ import annotations

from parlay.control.controller import Choice, View


class Repeat:
    """A bet that was weighed, and how often it may be made again."""

    __slots__ = ("_choice", "_n_left", "_view")

    def __init__(self, view: View, choice: Choice, before: Repeat | None, most: int) -> None:
        """`before`: the bet that was weighed last. Windows grow with what is won, round by round:
        only one that was chosen twice in an answer is stayed with, `most` rounds in a row."""
        self._view, self._choice = view, choice
        self._n_left = most if before is not None and before._was(view, choice) else 0

    def _was(self, view: View, choice: Choice) -> bool:
        """Whether that is this bet once more: in the same answer, as wide, by the same."""
        last, own = self._view, self._choice
        same_text = (view.seq_id, view.answer) == (last.seq_id, last.answer)
        return same_text and (choice.proposer, choice.window) == (own.proposer, own.window)

    def _may(self, view: View) -> bool:
        """Whether it may be made again at all: nothing was asked for or seen since the last one,
        but for what is offered, and there is room. A guard may have narrowed that."""
        last = self._view
        if not self._n_left or view.max_window < self._choice.window:
            return False
        same = view.seq_id == last.seq_id and view.thinking == last.thinking
        same = same and view.floor == last.floor and view.proposers == last.proposers
        if not same or view.window is not None or view.fallback is not None:
            return False
        told = view.looks is not None or view.shown or view.ready.read_s
        return not told and view.offers.keys() == last.offers.keys()

    def make_again(self, view: View) -> Choice:
        """The bet on this view."""
        self._view, self._n_left = view, self._n_left - 1
        return self._choice
