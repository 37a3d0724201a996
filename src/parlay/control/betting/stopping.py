"""Optimal stopping inside a draft: go on while the next tokens are worth their time.

Knows one draft's confidences, rates and prices, nothing else. Whatever was drafted, only the part
that is worth its rows goes into the target's pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import add
from typing import TypeVar

from parlay.control.prices.curve import MAX_ROWS
from parlay.control.prices.undoing import FOR_NOTHING, Undoing
from parlay.control.survival import CELL_OF, STEPS

T = TypeVar("T")
_NOTHING = [0.0] * (MAX_ROWS + 1)


class Stopping:
    """One draft in the making. `keep_going` and `verify` are the hooks of a choice."""

    __slots__ = (
        "_best",
        "_gain",
        "_gained",
        "_held",
        "_known",
        "_n",
        "_n_best",
        "_step",
        "_survival",
        "_undoing",
        "_values",
        "_window",
        "_won",
    )

    def __init__(
        self,
        odds: Sequence[float],
        difficulty: float,
        rates: Sequence[float],
        prices: Sequence[float],
        worth: float,
        step_s: float,
        window: int,
        undoing: Undoing = FOR_NOTHING,
        ahead: Sequence[tuple[float, float]] = (),
    ) -> None:
        """`odds` by cell of confidence; `rates` by position, for tokens not drafted yet; `prices`
        in seconds by rows of this sequence; `worth`: seconds that one accepted token saves;
        `ahead`: by tokens, what a hit of drafting on beside the pass wins, and what that costs."""
        self._n, self._n_best, self._window, self._step = 0, 0, window, step_s
        self._survival, self._undoing = 1.0, undoing
        self._gain, self._gained = 0.0, list[float]()
        self._best = -prices[1]  # the value of verifying the best part so far
        # By tokens: seconds of verifying so many, and those that are won if they and one more hold.
        each, on_hit = prices[1 : window + 2], _NOTHING
        # Where it is drafted ahead, by tokens read: what a hit wins, the chance that all of them
        # hold, and what verifying them is worth without a hit.
        self._won, self._held, self._values = list[float](), list[float](), list[float]()
        if ahead:
            more, following = _reaching(ahead, window), _reaching([*rates[1:], rates[-1]], window)
            self._won = [won_s for won_s, _ in more]
            on_hit = [0.0, *[r * won_s for r, won_s in zip(following, self._won, strict=True)]]
            each = list(map(add, each, [0.0, *[cost_s for _, cost_s in more]]))
        self._known = odds, difficulty, rates, worth, each, on_hit

    def keep_going(self, confidences: Sequence[float]) -> bool:
        """Whether the next tokens are expected to be worth more than what there is.

        However many of them: prices have steps, so one token may not pay alone.
        """
        self._read(confidences)
        survival, gain, seconds, best = self._survival, self._gain, 0.0, self._best
        _, _, rates, worth, prices, on_hit = self._known
        gained = self._gained.copy() if self._undoing.seconds else None
        for n in range(self._n + 1, self._window + 1):
            survival *= rates[n - 1]
            gain += survival
            seconds += self._step
            value = worth * gain - prices[n] + survival * on_hit[n] - seconds
            if gained is not None:
                gained.append(gain)
                value -= self._undoing.expected_s(gained, n)
            if value > best:
                return True
        return False

    def verify(self, confidences: Sequence[float]) -> int:
        """How many of the drafted tokens are worth a row."""
        self._read(confidences)
        return self._n_with_hits() if self._won else self._n_best

    def _n_with_hits(self) -> int:
        """The same where the drafter goes on. What it says next is known but for the last token,
        and so is the chance that it is the target's own."""
        held, rates = self._held, self._known[2]
        n = len(held)
        after = rates[n] if n < len(rates) else rates[-1]
        best, n_best = -self._known[4][0], 0
        for i, value in enumerate(self._values):
            hit = held[i + 1] if i + 1 < n else held[i] * after
            if (value := value + hit * self._won[i]) >= best:
                best, n_best = value, i + 1
        return n_best

    def _read(self, confidences: Sequence[float]) -> None:
        """Take in the tokens drafted since the last call. For each: the value of verifying all up
        to it, by how many are expected to hold, and by the chance that all do."""
        n, survival, gain = self._n, self._survival, self._gain
        odds, difficulty, _, worth, prices, on_hit = self._known
        undoing = self._undoing
        for sure in confidences[n : self._window]:
            n += 1
            survival /= 1.0 + odds[CELL_OF[int(sure * STEPS)]] * difficulty
            gain += survival
            value = worth * gain - prices[n]
            if undoing.seconds:
                self._gained.append(gain)
                value -= undoing.expected_s(self._gained, n)
            if self._won:
                self._held.append(survival)
                self._values.append(value)
            value += survival * on_hit[n]
            if value >= self._best:
                self._best, self._n_best = value, n
        self._n, self._survival, self._gain = n, survival, gain


def _reaching(values: Sequence[T], n: int) -> list[T]:
    """So many of them; the last one again and again where there are fewer."""
    return [*values[:n], *[values[-1]] * (n - len(values))]
