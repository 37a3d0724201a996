"""Drafts: what the proposers of an engine draft for its sequences, as far as a grammar lets them.

Knows proposers and how they are asked; which draft is bet on is the affair of `bets.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace
from functools import partial

from parlay.control.controller import Choice, View
from parlay.decoding.draft import NO_DRAFT, Draft
from parlay.proposers.glances import WINDOW
from parlay.proposers.joining import UntilForced, behind, joined, obeying
from parlay.proposers.proposer import Ask, Proposer, goes_on
from parlay.proposers.skeleton import SKELETON
from parlay.runtime.asks import free_ask, model_ask
from parlay.runtime.faults import Faults
from parlay.runtime.placed_bet import FAILED
from parlay.runtime.sequence import Sequence

_LEAST_FORCED = 4  # tokens: for fewer a model's draft is not ended
_NO_OFFERS: Mapping[str, Draft] = {}


class Drafts:
    """Asks proposers, which come and go. One that fails costs a draft, never an answer."""

    def __init__(
        self, proposers: Mapping[str, Proposer], free: frozenset[str], faults: Faults
    ) -> None:
        self._proposers = proposers
        self._free = free  # those that cost nothing, so that they are asked before choosing
        self._faults = faults

    def offers(self, names: Seq[str], seq: Sequence, window: int) -> Mapping[str, Draft]:
        """What each free proposer would draft, as far as a grammar lets it."""
        if not names:
            return _NO_OFFERS
        ask = free_ask(seq, window)
        offers = {name: self.propose(name, (ask,))[0] for name in names}
        forced = offers.get(SKELETON, NO_DRAFT)
        if forced.tokens and len(forced.tokens) < window:
            for name in names:
                if self._continues(name):
                    longer = self._go_on(name, ask, forced)
                    if len(longer.tokens) > len(forced.tokens):
                        offers[longer.proposer] = longer
        return offers

    def glanced(self, seq: Sequence) -> list[Draft]:
        """What the free proposers that look into texts would draft."""
        allowed = self._proposers if seq.request.proposers is None else seq.request.proposers
        names = [n for n in allowed if n in self._free and n != SKELETON and n in self._proposers]
        ask = replace(free_ask(seq, WINDOW), constraint=None)
        return [self.propose(name, (ask,))[0] for name in names]

    def _continues(self, name: str) -> bool:
        return goes_on(self._proposers[name])

    def _go_on(self, name: str, ask: Ask, ahead: Draft) -> Draft:
        """What a free proposer drafts behind what the grammar forces."""
        return joined(ahead, self.propose(name, (behind(ask, ahead),))[0])

    def chosen(
        self, sequences: Seq[Sequence], views: Seq[View], choices: Seq[Choice]
    ) -> list[Draft]:
        """One for each sequence, by who was chosen: an offer, or what a draft model makes now."""
        drafts = [
            view.offers.get(choice.proposer, NO_DRAFT).first(choice.window)
            for view, choice in zip(views, choices, strict=True)
        ]
        asked = [
            i
            for i, (view, choice) in enumerate(zip(views, choices, strict=True))
            if choice.window
            and choice.proposer not in self._free
            and choice.proposer not in view.offers
        ]
        for name in {choices[i].proposer for i in asked}:
            at = [i for i in asked if choices[i].proposer == name]
            # What the grammar forces needs no model: it drafts on from there.
            ahead = [self._forced(name, sequences[i], views[i], choices[i]) for i in at]
            asks = [
                self._until_forced(behind(model_ask(sequences[i], choices[i]), forced), views[i])
                for i, forced in zip(at, ahead, strict=True)
            ]
            found = self.propose(name, asks)
            for i, forced, ask, draft in zip(at, ahead, asks, found, strict=True):
                drafts[i] = draft if draft is FAILED else joined(forced, self._ended(ask, draft))
        return drafts

    def _until_forced(self, ask: Ask, view: View) -> Ask:
        """A model that has come to what the grammar forces need not go on."""
        if ask.constraint is None or ask.rejection or SKELETON not in view.proposers:
            return ask

        return replace(ask, until=UntilForced(partial(self._behind, ask)))

    def _ended(self, ask: Ask, draft: Draft) -> Draft:
        """A model's draft, and what the grammar forces behind it."""
        n, rated = len(draft.tokens), len(draft.confidence)
        if not isinstance(ask.until, UntilForced) or not 0 < n == rated < ask.window:
            return draft
        return joined(draft, ask.until.behind(draft.tokens))

    def _behind(self, ask: Ask, tokens: Seq[int]) -> Draft:
        """What the grammar forces behind these."""
        found = self.propose(SKELETON, (behind(ask, Draft(tuple(tokens), SKELETON)),))[0]
        return found if len(found.tokens) >= _LEAST_FORCED else NO_DRAFT

    def _forced(self, name: str, seq: Sequence, view: View, choice: Choice) -> Draft:
        """Rejection sampling wants a distribution for every token: nothing is put before those."""
        if not self._continues(name) or seq.request.verification == "rejection":
            return NO_DRAFT
        return view.offers.get(SKELETON, NO_DRAFT).first(choice.window)

    def propose(self, name: str, asks: Seq[Ask]) -> list[Draft]:
        """A proposer's fault must never cost an answer: without a draft, the round is plain."""
        try:
            return [
                obeying(ask, draft)
                for ask, draft in zip(asks, self._proposers[name].propose(asks), strict=True)
            ]
        except Exception as error:
            self._faults.tell(f"the proposer {name} failed, decoding plainly", error)
            return [FAILED] * len(asks)
