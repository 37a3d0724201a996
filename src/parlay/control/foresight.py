"""What drafting ahead is worth: the drafting that is hidden if the draft holds, less what it costs.

Knows rates and prices of one coming pass; chooses no window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from parlay.control.both import Both
from parlay.control.cost import DrafterCost


@dataclass(frozen=True, slots=True)
class Foresight:
    """Drafting ahead beside one pass, for all sequences that draft in it."""

    both: Both
    drafter: DrafterCost
    rates: Sequence[Sequence[float]]  # per sequence, by position
    n_ready: int  # tokens that every one of them has already

    def values(self, rows_at: Sequence[int], steady: Sequence[float]) -> list[float]:
        """Seconds saved on average, by window; `rows_at`: the rows of its pass."""
        hits = self._hits(len(rows_at))
        return [
            hit * self._hidden_s(window, rows, steady[rows])
            - self.cost_s(rows, steady[rows])
            - (1.0 - hit) * self.drafter.under_way_s(len(self.rates))
            for window, (rows, hit) in enumerate(zip(rows_at, hits, strict=True), 1)
        ]

    def cost_s(self, rows: int, pass_s: float) -> float:
        """What the pass takes more."""
        return (self.both.slowdown[rows] - 1.0) * pass_s

    def _hits(self, most: int) -> list[float]:
        """By window: the chance that the whole draft holds and the target's next is guessed."""
        found = [1.0] * most
        for rates in self.rates:
            survival = list(accumulate(rates, mul))
            for i in range(most):
                at = min(i, len(survival) - 1)
                found[i] *= survival[at] * rates[min(i + 1, len(rates) - 1)]
        return found

    def _hidden_s(self, window: int, rows: int, pass_s: float) -> float:
        """What the next draft, as long as this one, then need not be waited for.

        The first token beside the pass is the guess of the target's own.
        """
        n_made = self.both.n_beside(rows, pass_s) + max(0, self.n_ready - window)
        n = min(float(window), n_made - 1.0)
        if n <= 0.0:
            return 0.0
        n_sequences = len(self.rates)
        first_s = self.drafter.catch_up_s(2 * n_sequences, n_sequences)
        return min(1.0, n) * first_s + max(0.0, n - 1.0) * self.drafter.step_s(n_sequences)
