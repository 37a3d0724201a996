"""Which exact class an engine should run in: the one that costs least speed, by measured prices.

Pure arithmetic over prices and what proposers are worth; knows no model. A class costs twice: plain
passes are padded, and windows end where the class does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import mean

from parlay.engine.exact.exactness import ExactClass

# Seconds of a pass over so many sequences, with so many rows of all of them together.
Price = Callable[[int, int], float]

# How often drafts are right before any was seen, and in which share of rounds there is one.
_RATE = 0.75
_MODEL_SHARE, _FREE_SHARE = 1.0, 0.25
_N_PRIOR = 100  # tokens that were tried weigh as much as that guess
_ROWS = range(1, 18)  # that a pass without a class may have for each sequence
# A class with wider plain passes must save this part of the speed: prices are never quite right.
_CLEAR = 0.02


@dataclass(frozen=True, slots=True)
class Seen:
    """What earlier runs saw of a proposer's tokens."""

    n_held: float = 0.0
    n_tried: float = 0.0


@dataclass(frozen=True, slots=True)
class Worth:
    """What the proposers are expected to bring."""

    share: float  # of the rounds in which one has a draft
    rate: float  # of its tokens that hold
    step_s: float = 0.0  # seconds that a drafted token takes

    @classmethod
    def of(cls, *, free: bool, model: bool, step_s: float = 0.0) -> Worth:
        if model:
            return cls(_MODEL_SHARE, _RATE, step_s)
        return cls(_FREE_SHARE if free else 0.0, _RATE)

    def learned(self, seen: Seen) -> Worth:
        """With what earlier runs saw of the proposers."""
        expected = self.rate * _N_PRIOR + seen.n_held
        return replace(self, rate=expected / (_N_PRIOR + seen.n_tried))

    def tokens(self, window: int) -> float:
        """Of a round with a draft of this length."""
        return sum(self.rate**i for i in range(window + 1))


NOTHING = Worth(0.0, 0.0)  # no proposer, or no draft that pays


@dataclass(frozen=True, slots=True)
class Valuation:
    """How fast a machine decodes, inside a class and without one."""

    price: Price
    worth: Worth

    def rate(self, found: ExactClass, n_sequences: int) -> float:
        """Tokens per second of so many sequences in one pass of the class; 0: they cannot share."""
        return self._rate(found.rows_for(n_sequences), n_sequences)

    def cost(self, found: ExactClass, n_slots: int) -> float:
        """The part of the speed that the class costs whoever it costs most: one stream or a full
        machine, with drafts or without."""
        plain = replace(self, worth=NOTHING)
        ratios = [*self._ratios(found, n_slots), *plain._ratios(found, n_slots)]
        return max(0.0, 1.0 - min(ratios))

    def expected_cost(self, found: ExactClass, n_slots: int) -> float:
        """The part of the speed that it costs where drafts are as good as expected."""
        return max(0.0, 1.0 - mean(self._ratios(found, n_slots)))

    def best(self, classes: Iterable[ExactClass], n_slots: int, *, asked: bool) -> ExactClass:
        """The class that costs least; one with wider plain passes only where it clearly does.

        Who asked for exact text wants it fast; who did not must not be slowed down by padding.
        """
        cost = self.expected_cost if asked else self.cost
        found, *wider = sorted(classes, key=lambda c: c.floor)
        for other in wider:
            if cost(found, n_slots) - cost(other, n_slots) > _CLEAR:
                found = other
        return found

    def _ratios(self, found: ExactClass, n_slots: int) -> list[float]:
        """Its speed over that of any shapes: of one stream, and of a full machine."""
        return [self._exact(found, n) / self._rate(_ROWS, n) for n in sorted({1, n_slots})]

    def _exact(self, found: ExactClass, n: int) -> float:
        """Tokens per second of n sequences, parted into passes of the class."""
        left, seconds = n, 0.0
        while left:
            size = max(range(1, left + 1), key=lambda m: self.rate(found, m))
            seconds += size / self.rate(found, size)
            left -= size
        return n / seconds

    def _rate(self, rows: Sequence[int], n: int) -> float:
        """At the best window these rows allow; rounds without a draft have as few as there are."""
        if not rows:
            return 0.0
        share, worth = self.worth.share, self.worth
        plain_s = self.price(n, n * rows[0])
        rates = [n / plain_s]
        for r in rows if share else ():
            seconds = self.price(n, n * r) + (r - 1) * worth.step_s
            tokens = share * worth.tokens(r - 1) + 1.0 - share
            rates.append(n * tokens / (share * seconds + (1.0 - share) * plain_s))
        return max(rates)
