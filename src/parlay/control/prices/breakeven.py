"""Does it pay: what a round costs in plain passes, what it makes, and the acceptance it needs.

Pure arithmetic, and the only place for it: the bench, the pairs and the server's page ask here.
Knows neither models nor clocks. Two rules for all: a draft is paid as a whole, whatever its drafter
(a block costs nearly the same however little of it is used), and past the last position that was
seen, the last acceptance goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, islice, pairwise, repeat
from operator import mul

_HALVINGS = 50  # of an interval of acceptances: far below any measurement's error


@dataclass(frozen=True, slots=True)
class RoundCosts:
    """Seconds: of a target pass by its rows, of a whole draft by its tokens; some are measured."""

    target: Mapping[int, float]
    draft: Mapping[int, float] = field(default_factory=dict)  # empty: drafts cost nothing

    def target_s(self, rows: int) -> float:
        """T(rows): lines between measured points, flat before them, in proportion after."""
        last = max(self.target)
        return self.target[last] * rows / last if rows > last else _between(self.target, rows)

    def draft_s(self, tokens: int) -> float:
        """A whole draft: lines between measured ones, the last line goes on."""
        if not self.draft or not tokens:
            return 0.0
        if len(self.draft) > 1 and tokens > max(self.draft):
            low, high = sorted(self.draft)[-2:]
            step = (self.draft[high] - self.draft[low]) / (high - low)
            return self.draft[high] + max(0.0, step) * (tokens - high)
        return _between(self.draft, tokens)

    @property
    def per_token(self) -> float:
        """A drafted token over the target's own, in the draft that has it cheapest."""
        tokens = (seconds / n for n, seconds in self.draft.items())
        return min(tokens, default=0.0) / self.target_s(1)

    def round(self, window: int) -> float:
        """A round with a draft of so many tokens, in plain passes."""
        return (self.target_s(window + 1) + self.draft_s(window)) / self.target_s(1)


@dataclass(frozen=True, slots=True)
class Window:
    """One window: what a round costs in plain passes, what it makes, what it would need."""

    window: int
    cost: float
    tokens: float | None  # expected from the acceptance by position; None: nothing was seen
    break_even: float | None  # acceptance per token from which it pays; None: it never does

    @property
    def speedup(self) -> float | None:
        return None if self.tokens is None else self.tokens / self.cost


def value(costs: RoundCosts, window: int, by_position: Sequence[float] = ()) -> Window:
    """What a window is worth, given P(token j accepted | those before it were)."""
    cost = costs.round(window)
    tokens = expected_tokens(by_position, window) if by_position else None
    return Window(window, cost, tokens, break_even(cost, window))


def expected_tokens(by_position: Sequence[float], window: int) -> float:
    """1 + S(1) + ... + S(window), the target's own token included."""
    if not by_position:
        return 1.0
    conditional = islice(chain(by_position, repeat(by_position[-1])), window)
    survived: Iterable[float] = accumulate(conditional, mul)
    return 1.0 + sum(survived)


def break_even(cost: float, window: int) -> float | None:
    """The acceptance per token at which 1 + a + ... + a^window pays the cost; None if none does."""
    if cost <= 1:
        return 0.0
    if cost > window + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        made = sum(middle**j for j in range(window + 1))
        low, high = (middle, high) if made < cost else (low, middle)
    return high


def _between(points: Mapping[int, float], at: int) -> float:
    """On the lines between points, flat outside of them."""
    known = sorted(points)
    for low, high in pairwise(known):
        if low <= at <= high:
            share = (at - low) / (high - low)
            return points[low] + share * (points[high] - points[low])
    return points[known[0] if at < known[0] else known[-1]]
