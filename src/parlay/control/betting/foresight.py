"""What drafting ahead is worth: the drafting that is hidden if the draft holds, less what it costs.

Knows rates and prices of one coming pass; chooses no window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from parlay.control.prices.both import Both
from parlay.control.prices.cost import DrafterCost


@dataclass(frozen=True, slots=True)
class Foresight:
    """Drafting ahead beside one pass, for all sequences that draft in it."""

    both: Both
    drafter: DrafterCost
    rates: Sequence[Sequence[float]]  # per sequence, by position
    n_ready: int  # tokens that every one of them has already

    def values(self, rows_at: Sequence[int], steady: Sequence[float]) -> list[float]:
        """Seconds saved on average, by window; `rows_at`: the rows of its pass."""
        stakes, hits = self.stakes(rows_at, steady), self._hits(len(rows_at))
        return [hit * won_s - cost_s for (won_s, cost_s), hit in zip(stakes, hits, strict=True)]

    def stakes(self, rows_at: Sequence[int], steady: Sequence[float]) -> list[tuple[float, float]]:
        """By window: seconds that a hit wins, and those that are paid for it whatever comes.

        What is won is the next draft, as long as this one, as far as it need not be waited for; the
        first token beside the pass is the guess of the target's own.
        """
        both, n_sequences = self.both, len(self.rates)
        first_s = self.drafter.catch_up_s(2 * n_sequences, n_sequences)
        step_s, miss_s = self.drafter.step_s(n_sequences), self.drafter.under_way_s(n_sequences)
        found = []
        for window, rows in enumerate(rows_at, 1):
            pass_s = steady[rows]
            n_made = both.n_beside(rows, pass_s) + max(0, self.n_ready - window)
            n = max(0.0, min(float(window), n_made - 1.0))
            hidden_s = n * first_s if n < 1.0 else first_s + (n - 1.0) * step_s
            longer_s = (both.slowdown[rows] - 1.0) * pass_s
            found.append((hidden_s + miss_s, longer_s + miss_s))
        return found

    def _hits(self, most: int) -> list[float]:
        """By window: the chance that the whole draft holds and the target's next is guessed."""
        found = [1.0] * most
        for rates in self.rates:
            survival = list(accumulate(rates, mul))
            for i in range(most):
                at = min(i, len(survival) - 1)
                found[i] *= survival[at] * rates[min(i + 1, len(rates) - 1)]
        return found
