"""When drafts are searched for in a replay, and what that takes: as in the runtime.

Knows rounds, and whether a draft's first token was right; no tokens. Where searching costs nothing,
it is done in every round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parlay.control.controller import Controller
from parlay.proposers.glances import Glances


@dataclass(frozen=True, slots=True)
class SearchCost:
    """Seconds before a pass, beside what the drafter takes."""

    each_s: float  # to search for one sequence's draft, and to weigh it
    idle_s: float = 0.0  # of a round that is not searched
    beside: bool = False  # a device computes on its own: texts are glanced at meanwhile


@dataclass(frozen=True, slots=True)
class Place:
    """Where a sequence is, and whether anybody guesses its next token."""

    seq_id: int
    n_tokens: int
    right: bool


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
        """While a pass is computed that nothing was searched for."""
        if self._cost is None or not self._cost.beside or not controller.rests():
            return
        for at in self._glances.whose_turn(places):
            # Its text is taken to count from one: a right guess is the next number.
            expected = frozenset({at.n_tokens + 1} if at.right else ())
            if self._glances.saw(at.seq_id, range(1, at.n_tokens + 1), expected):
                controller.notice()
