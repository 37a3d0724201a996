"""Drafts behind drafts: one proposer goes on where another ends, as far as a grammar lets it.

Knows asks and drafts; nothing of who is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

from parlay.decoding.draft import JOINED, NO_DRAFT, Draft
from parlay.proposers.proposer import Ask

# A model that is surer of all it has drafted may be worth more behind what the grammar forces.
_SURE = 0.6


@dataclass(slots=True)
class UntilForced:
    """Ends a model's draft where a grammar goes on, and keeps what it found there."""

    look: Callable[[Sequence[int]], Draft]  # what the grammar forces behind these
    _at: tuple[int, ...] = ()
    _found: Draft = NO_DRAFT

    def __call__(self, tokens: Sequence[int], sure: Sequence[float]) -> bool:
        return prod(sure) < _SURE and bool(self.behind(tokens).tokens)

    def behind(self, tokens: Sequence[int]) -> Draft:
        """The same as `look`, at one place only once."""
        if tuple(tokens) != self._at:
            self._at, self._found = tuple(tokens), self.look(tokens)
        return self._found


def behind(ask: Ask, ahead: Draft) -> Ask:
    """The same, as if the draft of another were committed already."""
    n = len(ahead.tokens)
    if not n:
        return ask
    going, sure = ask.keep_going, ahead.confidence
    return replace(
        ask,
        tokens=[*ask.tokens, *ahead.tokens],
        window=ask.window - n,
        position=ask.position + n,
        n_ahead=ask.n_ahead + n,
        keep_going=None if going is None else lambda found: going([*sure, *found]),
    )


def joined(first: Draft, second: Draft) -> Draft:
    """One draft after the other."""
    if not first.tokens or not second.tokens:
        return first if first.tokens else second
    return Draft(
        first.tokens + second.tokens,
        f"{first.proposer}{JOINED}{second.proposer}",
        first.confidence + second.confidence,
        second.q,
    )


def obeying(ask: Ask, draft: Draft) -> Draft:
    """As much of a draft as a grammar lets come: no row is spent on the rest."""
    if ask.constraint is None or not draft.tokens:
        return draft
    ahead = list(ask.tokens[len(ask.tokens) - ask.n_ahead :])
    return draft.first(max(0, ask.constraint.n_obeying([*ahead, *draft.tokens]) - len(ahead)))
