"""One request in a slot, as far as a controller follows it.

Knows what its text has shown of each proposer; knows no prices.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from parlay.control.betting.stake import Refusal
from parlay.control.controller import View
from parlay.control.evidence import Evidence
from parlay.control.survival import Difficulty

# Tokens from one weighing of what a search would find to the next.
_WAIT = 4


class FollowedRequest:
    """One request in a slot, as far as a controller follows it."""

    __slots__ = (
        "_awaits",
        "_considered_at",
        "_difficulties",
        "_evidence",
        "_n_read",
        "_next",
        "_wait",
        "_weighed_at",
        "asked",
        "looked_s",
        "looking",
        "refused",
        "view",
    )

    def __init__(self, view: View) -> None:
        self.view = view
        self._next: View | None = None  # of the coming round, while the last one is not observed
        self._awaits = False  # whether a round was chosen for that is not observed yet
        self._n_read: dict[str, int] = {}  # tokens, by draft model
        self.asked = "none"  # the proposer that was bet on
        self.refused: Refusal | None = None
        self._difficulties: dict[tuple[str, bool], Difficulty] = {}
        self._evidence: dict[str, Evidence] = {}
        self.looked_s = 0.0  # what drafts beside its passes took that were only looked at
        self.looking = ""  # whose drafts are being compared with the text
        self._weighed_at = 0
        self._considered_at, self._wait = 0, _WAIT

    def weigh(self, view: View) -> None:
        """Another round is chosen for; nobody is asked yet."""
        self.view, self._next, self._awaits = view, None, True
        self.asked, self.refused = "none", None

    @contextmanager
    def supposing(self, view: View) -> Iterator[None]:
        """Something is weighed that no round comes of: what was chosen last stays as it was."""
        before, refused = self.view, self.refused
        self.view = view
        try:
            yield
        finally:
            self.view, self.refused = before, refused

    def bet_again(self, view: View) -> None:
        """The next round is as the last one, which is learned from by the view that it was chosen
        by: before this or after it."""
        if self._awaits:
            self._next = view
        else:
            self.view, self._awaits = view, True

    def observed(self) -> None:
        """The last round was learned from."""
        following, self._next = self._next, None
        self._awaits = following is not None
        if following is not None:
            self.view = following

    def considers(self, n_generated: int) -> bool:
        """Whether it is time to weigh what a search would find; not in every round."""
        due = not 0 <= n_generated - self._considered_at < self._wait
        if due:
            self._considered_at = n_generated
        return due

    def woke(self, n_generated: int) -> None:
        """A search was asked for: should nothing come of it, the next one is twice as far."""
        self._considered_at, self._wait = n_generated, 2 * self._wait

    def n_since(self) -> int:
        """Tokens since this was last asked."""
        before, self._weighed_at = self._weighed_at, self.view.n_generated
        return max(1, self._weighed_at - before)

    def n_missing(self, proposer: str) -> int:
        """Tokens that a draft model has not read: since its last draft, or beside passes."""
        since = self.view.n_context + 1 - self._n_read.get(proposer, 0)
        return max(1, min(since, self.view.unread.get(proposer, since)))

    def has_read(self, proposer: str, n_generated: int, *, but: int) -> None:
        """A draft model has read all there is after a round, `but` for the last ones."""
        self._n_read[proposer] = self.view.n_context + 1 + n_generated - but

    def has_forgotten(self, proposer: str) -> None:
        """A draft model failed, and reads the text from its beginning."""
        self._n_read.pop(proposer, None)

    def evidence(self, proposer: str) -> Evidence:
        """What this text has shown of a proposer."""
        found = self._evidence.get(proposer)
        if found is None:
            found = self._evidence[proposer] = Evidence()
        return found

    def difficulty(self, proposer: str, by_position: bool = False) -> Difficulty:
        """How this text treats a proposer, by its confidences or by position."""
        found = self._difficulties.get((proposer, by_position))
        if found is None:
            found = self._difficulties[proposer, by_position] = Difficulty()
        return found
