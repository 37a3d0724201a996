"""When drafts are searched for in a replay, and what that takes: as in the runtime.

Knows rounds, and how much of a draft was right; no tokens. Where searching costs nothing,
it is done in every round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from parlay.control.controller import Controller
from parlay.decoding.draft import Draft, Shown
from parlay.proposers.glances import WINDOW, Glances, longest
from parlay.replay.recording import RecordedOffer


@dataclass(frozen=True, slots=True)
class SearchCost:
    """Seconds before a pass, beside what the drafter takes."""

    each_s: float  # to search for one sequence's draft, and to weigh it
    idle_s: float = 0.0  # of a round that is not searched
    beside: bool = False  # a device computes on its own: texts are glanced at meanwhile


@dataclass(frozen=True, slots=True)
class Place:
    """Where a sequence is, and what would be drafted there: how much of it is right, and how sure
    it is. Its text is taken to count from one: a right draft goes on with the next numbers."""

    seq_id: int
    tokens: range
    offers: Mapping[str, RecordedOffer]

    def draft(self, name: str) -> Draft:
        offer, end = self.offers[name], self.tokens.stop
        sure = offer.confidence[:WINDOW]
        right = range(end, end + min(offer.n_accepted, len(sure)))
        return Draft((*right, *(0,) * (len(sure) - len(right))), name, sure)

    @property
    def drafts(self) -> dict[str, Draft]:
        return {name: self.draft(name) for name in self.offers}


class Searching:
    """Of one replay."""

    def __init__(self, cost: SearchCost | None) -> None:
        self._cost = cost
        self._glances = Glances()

    def due(self, controller: Controller, n_texts: int) -> int:
        """For how many the free proposers are asked in the coming round; called once for each."""
        return n_texts if self._cost is None else controller.due(n_texts)

    def seconds(self, n_searched: int) -> float:
        if self._cost is None:
            return 0.0
        return n_searched * self._cost.each_s if n_searched else self._cost.idle_s

    def glance(self, controller: Controller, places: Sequence[Place]) -> None:
        """While a pass is computed."""
        if self._cost is None or not self._cost.beside:
            return
        if not controller.rests():
            self._glances.pause()
            return
        for at in self._glances.whose_turn(places):
            self._glances.follow(at.seq_id, len(at.tokens), longest(at.drafts.values()))
        if self._glances.repeats(len(places)):
            controller.notice()
            if len(places) == 1 and controller.rests():
                at = places[0]
                controller.consider(at.seq_id, at.drafts, self.shown(at.seq_id), len(at.tokens))

    def shown(self, seq_id: int) -> Sequence[Shown]:
        """What a text has shown in rounds without a search."""
        return self._glances.shown(seq_id)
