"""Draft what a grammar forces: marks, names and other parts the model has no choice about.

Knows a sequence's constraint, whose own state says what must come; it keeps nothing itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from parlay.decoding.draft import NO_DRAFT, Draft
from parlay.proposers.proposer import Ask, Proposer, Worth

SKELETON = "skeleton"


class SkeletonProposer(Proposer):
    """Drafts up to the next place where the model has a choice."""

    name = SKELETON
    free = True

    def draft(self, asks: Sequence[Ask], worth: Worth | None = None) -> list[Draft]:
        """Empty where no grammar holds."""
        return [self._draft(ask) for ask in asks]

    def _draft(self, ask: Ask) -> Draft:
        if ask.constraint is None or not ask.window:
            return NO_DRAFT
        forced = ask.constraint.forced(ask.tokens[len(ask.tokens) - ask.n_ahead :])
        if not forced.tokens:
            return NO_DRAFT
        return Draft(forced.tokens[: ask.window], self.name, forced.sure[: ask.window])
