"""The coming pass: its answers, what it costs by its rows, and drafts that could be made for it.

Knows prices and chances; decides nothing. A pass is kept until it is observed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from parlay.control.prices.curve import MAX_ROWS, Curve
from parlay.control.prices.drafter_cost import DrafterCost
from parlay.control.purse import Purse
from parlay.control.rates import Hardness
from parlay.decoding.draft import Draft

CHANGE = 0.5  # part of a change of shape that one bet has to pay: the next one is often as wide
SPAN = 8  # rows that may make up for a step in the prices
ROOM = 0.25  # of a token's time, if its answer is ahead and those that stay have long to go


@dataclass(slots=True)
class Text:
    """One answer in a slot."""

    answer: int
    purse: Purse
    hardness: dict[tuple[str, bool], Hardness] = field(default_factory=dict)
    hope: float = 0.0  # how often of late free drafts were right, bet on or not
    waits: int = 0  # passes since it was searched for
    vetoed: tuple[str, float] | None = None  # whose draft, and the passes that it would lose

    def hard(self, who: str, blind: bool = False) -> Hardness:
        found = self.hardness.get((who, blind))
        if found is None:
            found = self.hardness[who, blind] = Hardness()
        return found


@dataclass(slots=True)
class Bet:
    """Drafts that could be made for a pass: whose, with which chances, in what time.

    A unit is a token more for everybody where all have as many rows, else one of anybody's.
    """

    who: list[str]  # by answer; empty: nobody's
    alive: list[list[float]]  # that all tokens up to each are right
    gained: list[float]  # tokens expected to hold, by units
    order: list[tuple[float, int]] = field(default_factory=list)  # chances and whose, best first
    part: float = 1.0  # of a token that is what one is worth
    users: frozenset[int] = frozenset()  # answers that a draft model drafts for
    cost: DrafterCost | None = None
    unread: int = 0  # tokens that it has to read,
    ready: int = 0  # and those that it has drafted already
    depth: int = 0  # tokens that it is expected to draft for each of several
    draft_s: Sequence[float] = ()  # before the pass, by units
    undo_s: Sequence[float] = ()  # taking it back, on average
    invested_s: float = 0.0  # reading the text, which pays for itself
    rounds: float = 1.0  # in so many rounds
    units: int = 0  # that are taken
    widest: int = 0  # tokens that the model may draft
    speed: float = 0.0  # tokens a second
    worst: float = 0.0  # plain passes that it may lose
    lost: float = 0.0  # that it would lose, if it is vetoed, by its own rows and drafting

    def sizes(self, equal: bool, units: int | None = None) -> list[int]:
        """Tokens of each answer."""
        units = self.units if units is None else units
        if equal or len(self.alive) == 1:
            return [min(units, len(each)) for each in self.alive]
        sizes = [0] * len(self.alive)
        for _, i in self.order[:units]:
            sizes[i] += 1
        return sizes

    def ahead(self, equal: bool, units: int) -> list[float]:
        """Tokens of each answer that are expected to hold."""
        if equal:
            return [sum(each[:units]) for each in self.alive]
        found = [0.0] * len(self.alive)
        for chance, i in self.order[:units]:
            found[i] += chance
        return found


@dataclass(slots=True)
class Pass:
    """The coming pass, or one that is not yet observed: its answers, its prices and its bet."""

    ids: list[tuple[int, int]]  # slots and answers
    n: int  # sequences, those in gaps of the ids included
    equal: bool  # all have as many rows
    floor: int  # rows of each at least
    curve: Curve
    last_rows: int  # of the pass before it; 0: it had another shape whatever this one has
    settles: bool  # whether that one was the first of its shape
    excused: float  # seconds of changes of shape that no bet made
    odd: bool  # its price is not that of its shape: something else was computed before it
    steady: Sequence[float] = ()  # seconds by rows,
    full: Sequence[float] = ()  # with the change of shape and settling,
    paid: Sequence[float] = ()  # and with the part of it that one bet has to pay
    widths: Sequence[int] = ()  # rows that a lone answer's pass is padded to
    saved: Sequence[float] = ()  # tokens that it saves if so many answers end a token sooner
    most_units: int = 0
    back_s: float = 0.0  # to change to a plain pass again
    plain_s: float = 1.0
    plain_speed: float = 1.0  # tokens a second
    host_s: float = 0.0  # outside the pass and drafting
    pending: float = 0.0  # passes that the one before it may have lost
    offers: list[Mapping[str, Draft]] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)  # of rates: greedy texts, or sampled ones
    was_searched: list[bool] = field(default_factory=list)
    bet: Bet | None = None
    vetoed: Bet | None = None  # the fastest that could not be borne,
    missed: float = 0.0  # and its speed
    shaped: bool = False  # whether it is known which shape it had

    @property
    def size(self) -> int:
        """Answers."""
        return len(self.ids)

    def price(self, most: int, pads: bool, n_answers: int) -> None:
        """Seconds by rows, as far as drafts of `most` tokens reach."""
        each = self.n if self.equal else 1
        widest = (1 + most) * (self.n if self.equal else n_answers)
        top = max(self.n * self.floor, min(widest + self.n - n_answers, MAX_ROWS))
        self.most_units = max(0, (top - self.n) // each)
        curve, last = self.curve, self.last_rows
        self.steady = self.full = self.paid = curve.steady
        plain_rows = self.n * self.floor
        if curve.prices_change:
            steady = curve.steady[: top + 1]
            self.full = [s + curve.settling_s for s in curve.changed[: top + 1]]
            if last <= top:
                self.full[last] = steady[last]
            pairs = zip(steady, self.full, strict=True)
            self.paid = [s + CHANGE * (f - s) for s, f in pairs]
            self.back_s = curve.changed[plain_rows] - steady[plain_rows] + curve.settling_s
        self.plain_s = curve.steady[plain_rows]
        if pads:  # rows that nobody reads, where the pass is cheaper with them
            self.widths = widths = list(range(top + 1))
            for rows in range(top - 1, 1, -1):
                if self.paid[widths[rows + 1]] < self.paid[rows]:
                    widths[rows] = widths[rows + 1]
        self.plain_speed = n_answers / (self.paid[plain_rows] + self.host_s)

    def worth(self, ahead: Sequence[float]) -> float:
        """What it is worth that each answer comes so many tokens further, in tokens. Whoever ends
        sooner leaves a smaller pass to the others; if nobody waits for the slot, that saves what
        the pass is cheaper then. So much of it is what all of them come further together."""
        total = sum(ahead)
        if not self.saved or not total:
            return total
        value, before, n_ahead = 0.0, 0.0, len(ahead)
        for tokens in sorted(ahead):
            value += (tokens - before) * self.saved[n_ahead]
            before, n_ahead = tokens, n_ahead - 1
        return ROOM * total + (1.0 - ROOM) * value

    def rows(self, units: int) -> int:
        """Of a pass with so many units drafted."""
        if self.equal:
            return self.n * max(self.floor, 1 + units)
        rows = max(self.n * self.floor, self.n + units)
        return self.widths[rows] if units and self.widths else rows

    def width(self, rows: int) -> int:
        """Rows that a lone answer's pass of so many is padded to."""
        return self.widths[rows] if 1 < rows < len(self.widths) else rows

    def rows_of(self, drafted: Sequence[int]) -> int:
        """Of a pass with so many tokens drafted for each."""
        return min(MAX_ROWS, self.rows(max(drafted) if self.equal else sum(drafted)))

    def worst_s(self, units: int) -> float:
        """Seconds that are lost if nothing drafted holds and the shape has to change back."""
        rows = self.rows(units)
        extra_s = self.full[rows] - min(self.excused, self.full[rows] - self.steady[rows])
        return max(0.0, extra_s - self.plain_s) + self.back_s

    def slope(self, units: int) -> float:
        """Seconds of one more row, at best of the next few."""
        t, r = self.paid, self.rows(units)
        return max(
            0.0,
            min(
                [(t[b] - t[r]) / (b - r) for b in range(r + 1, r + 1 + SPAN) if b < len(t)],
                default=0.0,
            ),
        )
