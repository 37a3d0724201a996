"""Draft what a grammar forces: marks, names and other parts the model has no choice about.

Knows a sequence's constraint and the bytes of tokens; the grammar's own state says what must come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from parlay.decoding.draft import NO_DRAFT, Draft
from parlay.decoding.spacing import Spacing
from parlay.proposers.proposer import Ask

SKELETON = "skeleton"
_SURE = 0.97
# The last token may be written as one with what follows it, and white space is only a habit.
_LAST = 0.8


class SkeletonProposer:
    """Drafts up to the next place where the model has a choice."""

    name = SKELETON

    def __init__(self, piece: Callable[[int], bytes]) -> None:
        self._piece = piece
        self._spacings: dict[int, tuple[Spacing, int]] = {}  # and the tokens it has read

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        """One draft per ask, in order; empty where no grammar holds."""
        return [self._draft(ask) for ask in asks]

    def forget(self, seq_id: int) -> None:
        self._spacings.pop(seq_id, None)

    def finish(self, seq_id: int, tokens: Sequence[int]) -> None:
        self.forget(seq_id)

    def shift(self, seq_id: int, keep: int, discard: int) -> None:
        """So many tokens before the end of what was read went."""
        if seq_id in self._spacings:
            spacing, n_read = self._spacings[seq_id]
            self._spacings[seq_id] = (spacing, n_read - discard)

    def close(self) -> None:
        self._spacings.clear()

    def _draft(self, ask: Ask) -> Draft:
        if ask.constraint is None or not ask.window:
            return NO_DRAFT
        tokens = ask.constraint.forced(self._read(ask))[: ask.window]
        if not tokens:
            return NO_DRAFT
        return Draft(tuple(tokens), self.name, (*(_SURE,) * (len(tokens) - 1), _LAST))

    def _read(self, ask: Ask) -> Spacing:
        spacing, n_read = self._spacings.get(ask.seq_id, (Spacing(), ask.n_prompt))
        for token in ask.tokens[n_read:]:
            spacing.read(self._piece(token))
        self._spacings[ask.seq_id] = (spacing, len(ask.tokens))
        return spacing
