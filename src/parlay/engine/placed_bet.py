"""A bet on one round: what the controller chose, and the draft that came of it.

Plain data; who is asked, and when, is decided by `bets.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace

from parlay.control.controller import Choice, View
from parlay.decoding.draft import NO_DRAFT, Draft
from parlay.decoding.round import Fallback
from parlay.decoding.span import common_prefix

FAILED = Draft((), "none")  # of a proposer that broke


@dataclass(slots=True)  # not frozen, as `Round` is not
class Bet:
    """A choice and the draft that came of it."""

    choice: Choice
    draft: Draft
    n_dropped: int = 0  # drafted, but not worth a row in the pass
    offers: Mapping[str, Draft] = field(default_factory=dict)  # all that could have been chosen

    def agreed(self, tokens: Seq[int]) -> dict[str, int]:
        """How many leading tokens of every offer, taken or not, the round generated."""
        if not self.offers:
            return {}
        return {name: common_prefix(draft.tokens, tokens) for name, draft in self.offers.items()}

    def first(self, n: int) -> Bet:
        """With so many tokens of its draft; of one that took time the others are dropped."""
        n_left_out = len(self.draft.tokens) - n if self.choice.verify is not None else 0
        choice = self.choice if n else replace(self.choice, fallback=Fallback.EXACT, widths=())
        draft = self.draft.first(n) if n else NO_DRAFT
        return replace(self, choice=choice, draft=draft, n_dropped=self.n_dropped + n_left_out)

    @property
    def fallback(self) -> Fallback | None:
        if self.draft.tokens:
            return None
        if self.draft is FAILED:
            return Fallback.DRAFT_ERROR
        return self.choice.fallback or Fallback.NO_DRAFT


def bet_on(choice: Choice, draft: Draft, view: View) -> Bet:
    """The draft as far as the controller wants it verified, now that its confidences are known."""
    offers = view.offers
    if choice.look:
        return Bet(choice, NO_DRAFT, len(draft.tokens), offers)
    if choice.verify is None or not draft.confidence:
        return Bet(choice, draft, 0, offers)
    n_made, n = len(draft.tokens), choice.verify(draft.confidence)
    if n == 0:
        unprofitable = replace(choice, fallback=Fallback.UNPROFITABLE, widths=())
        return Bet(unprofitable, NO_DRAFT, n_made, offers)
    return Bet(choice, draft.first(n), n_made - n, offers)
