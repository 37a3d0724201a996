"""Drafts behind drafts: one proposer goes on where another ends, as far as a grammar lets it.

Knows asks and drafts; nothing of who is asked.
"""

from __future__ import annotations

from dataclasses import replace

from parlay.decoding.draft import JOINED, Draft
from parlay.proposers.proposer import Ask


def behind(ask: Ask, ahead: Draft) -> Ask:
    """The same, as if the draft of another were committed already."""
    n = len(ahead.tokens)
    if not n:
        return ask
    return replace(
        ask,
        tokens=[*ask.tokens, *ahead.tokens],
        window=ask.window - n,
        position=ask.position + n,
        n_ahead=ask.n_ahead + n,
    )


def joined(first: Draft, second: Draft) -> Draft:
    """One draft after the other."""
    if not first.tokens or not second.tokens:
        return first if first.tokens else second
    return Draft(
        first.tokens + second.tokens,
        f"{first.proposer}{JOINED}{second.proposer}",
        first.confidence + second.confidence,
    )


def obeying(ask: Ask, draft: Draft) -> Draft:
    """As much of a draft as a grammar lets come: no row is spent on the rest."""
    if ask.constraint is None or not draft.tokens:
        return draft
    ahead = list(ask.tokens[len(ask.tokens) - ask.n_ahead :])
    return draft.first(max(0, ask.constraint.n_obeying([*ahead, *draft.tokens]) - len(ahead)))
