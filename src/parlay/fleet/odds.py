"""What a proposer's drafts are worth: how often it offers one, and how much of it is accepted.

Numbers only; where they come from (an acceptance, recordings, a request log) is the maker's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from random import Random

from parlay.errors import BadRequest
from parlay.replay.recording import Recording

MAX_WINDOW = 16


@dataclass(frozen=True, slots=True)
class Odds:
    """One proposer. `by_position`: P(token j accepted, given those before it were)."""

    name: str
    by_position: tuple[float, ...]
    offered: float = 1.0  # share of rounds in which there is a draft at all
    drafts_by_model: bool = True  # its time is the drafter's, in the cost table

    def __post_init__(self) -> None:
        if not self.by_position or not all(0 <= p <= 1 for p in (*self.by_position, self.offered)):
            raise BadRequest("acceptances are shares; give numbers from 0 to 1")

    @classmethod
    def flat(cls, acceptance: float, name: str = "") -> Odds:
        """The same acceptance at every position, as a drafter's is often summed up."""
        return cls(name or f"acceptance {acceptance:g}", (acceptance,) * MAX_WINDOW)

    def survival(self, window: int) -> list[float]:
        """P(the first j tokens are all accepted), for j = 1 to the window."""
        last = self.by_position[-1]
        rates = [self.by_position[j] if j < len(self.by_position) else last for j in range(window)]
        return list(accumulate(rates, mul))

    def expected(self, window: int) -> float:
        """Tokens of a round."""
        return 1.0 + self.offered * sum(self.survival(window))


class Draws:
    """Random drafts with given odds."""

    def __init__(self, odds: Odds, rng: Random) -> None:
        self._share = odds.offered
        self._random = rng.random
        # Rising: the chance that a draft has been rejected by token j.
        self._rejected = [1.0 - s for s in odds.survival(MAX_WINDOW)]

    def offered(self) -> bool:
        return self._share >= 1.0 or self._random() < self._share

    def accepted(self, window: int) -> int:
        """How many tokens of a draft hold: token j does if the draw lies beyond its chance."""
        return bisect_right(self._rejected, self._random(), 0, window)


def recorded_odds(recordings: Iterable[Recording], proposer: str) -> Odds:
    """A proposer's odds over recorded answers, position by position, each seen once a round."""
    tried, held = [0] * MAX_WINDOW, [0] * MAX_WINDOW
    n_rounds = n_offers = 0
    for recording in recordings:
        if proposer not in recording.offers:
            known = ", ".join(sorted(recording.offers))
            raise BadRequest(f"no proposer {proposer!r} was recorded; known: {known}")
        at = 0
        offers = recording.offers[proposer]
        while at < len(offers):
            offer = offers[at]
            n_rounds += 1
            n_offers += bool(offer.confidence)
            for j in range(min(MAX_WINDOW, len(offer.confidence), offer.n_accepted + 1)):
                tried[j] += 1
                held[j] += j < offer.n_accepted
            at += offer.n_accepted + 1
    rates = [h / t for h, t in zip(held, tried, strict=True) if t]
    if not rates:
        raise BadRequest(f"{proposer} never drafted in these recordings; choose another")
    by_model = proposer not in ("ngram", "suffix")
    return Odds(proposer, tuple(rates), n_offers / n_rounds, by_model)
