"""What drafting ahead is worth: the drafting that is hidden if the draft holds, less what it costs.

Knows rates and prices of one coming pass; chooses no window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from parlay.control.prices.both import Both
from parlay.control.prices.drafter_cost import DrafterCost


@dataclass(frozen=True, slots=True)
class Foresight:
    """Drafting ahead beside one pass, for all sequences that draft in it."""

    both: Both
    drafter: DrafterCost
    rates: Sequence[Sequence[float]]  # per sequence, by position
    n_ready: int  # tokens that every one of them has already

    def values(self, rows_at: Sequence[int], steady: Sequence[float]) -> list[float]:
        """Seconds saved on average, by window; `rows_at`: the rows of its pass."""
        return self.averages(self.stakes(rows_at, steady))

    def averages(self, stakes: Sequence[tuple[float, float]]) -> list[float]:
        """The same of stakes that are known."""
        hits = self._hits(len(stakes))
        return [hit * won_s - cost_s for (won_s, cost_s), hit in zip(stakes, hits, strict=True)]

    def stakes(self, rows_at: Sequence[int], steady: Sequence[float]) -> list[tuple[float, float]]:
        """By window: seconds that a hit wins, and those that are paid for it whatever comes.

        What is won is the next draft, as long as this one, as far as it need not be waited for; the
        first token beside the pass is the guess of the target's own.
        """
        n_sequences, n_ready = len(self.rates), self.n_ready
        slowdown, token_s = self.both.slowdown, self.both.token_s
        first_s = self.drafter.catch_up_s(2 * n_sequences, n_sequences)
        step_s, miss_s = self.drafter.step_s(n_sequences), self.drafter.under_way_s(n_sequences)
        found = []
        for window, rows in enumerate(rows_at, 1):  # in every round: as little as can be
            pass_s, slower = steady[rows], slowdown[rows]
            n = pass_s * slower / token_s[rows] - 1.0  # made beside the pass, but for the guess
            if n_ready > window:
                n += n_ready - window
            n = window if n > window else n
            hidden_s = first_s + (n - 1.0) * step_s if n >= 1.0 else max(0.0, n) * first_s
            found.append((hidden_s + miss_s, (slower - 1.0) * pass_s + miss_s))
        return found

    def _hits(self, most: int) -> list[float]:
        """By window: the chance that the whole draft holds and the target's next is guessed."""
        found = [1.0] * most
        for rates in self.rates:
            hits = list(map(mul, accumulate(rates, mul), (*rates[1:], rates[-1])))
            hits += hits[-1:] * (most - len(hits))
            found = list(map(mul, found, hits))
        return found
