"""What a window would gain: survival of drafts against the measured time of passes.

Pure arithmetic; knows neither models nor clocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds: of a target pass by its rows, of a draft by its tokens. A draft model's drafts cost
    by the token, a block drafter's short ones nearly as much as its long ones."""

    target: Mapping[int, float]
    drafter: Mapping[int, float]

    @property
    def ratio(self) -> float:
        """The drafter's token over the target's, in the draft that has it cheapest."""
        tokens = (seconds / window for window, seconds in self.drafter.items())
        return min(tokens, default=0.0) / self.target[1]

    def round(self, window: int) -> float:
        """A round with a draft of so many tokens, over plain decoding's."""
        return (self.target[window + 1] + self.drafter.get(window, 0.0)) / self.target[1]

    @property
    def windows(self) -> list[int]:
        """Windows whose passes were timed."""
        return sorted(rows - 1 for rows in self.target if rows > 1)


def survival(conditional: Sequence[float]) -> list[float]:
    """P(first j draft tokens accepted), from P(token j accepted | those before it were)."""
    return list(accumulate(conditional, mul))


def speedup(window: int, survived: Sequence[float], costs: Costs) -> float:
    """Tokens per unit of time over plain decoding's. Unseen positions count as rejected."""
    return (1 + sum(survived[:window])) / costs.round(window)


def break_even(window: int, costs: Costs) -> float | None:
    """The acceptance per token from which this window pays; None if none does."""
    price = costs.round(window)
    if window + 1 < price:
        return None
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        if sum(middle**j for j in range(window + 1)) < price:
            low = middle
        else:
            high = middle
    return high
