"""Optimal stopping inside a draft: go on while the next tokens are worth their time.

Knows one draft's confidences, rates and prices, nothing else. Whatever was drafted, only the part
that is worth its rows goes into the target's pass.
"""

from __future__ import annotations

from collections.abc import Sequence

from parlay.control.prices.undoing import FOR_NOTHING, Undoing
from parlay.control.survival import CELL_OF, STEPS


class Stopping:
    """One draft in the making. `keep_going` and `verify` are the hooks of a choice."""

    __slots__ = (
        "_ahead",
        "_best",
        "_difficulty",
        "_gain",
        "_gained",
        "_n",
        "_n_best",
        "_odds",
        "_prices",
        "_rates",
        "_step",
        "_survival",
        "_undoing",
        "_window",
        "_worth",
    )  # fmt: skip

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
        self._odds, self._difficulty, self._rates = odds, difficulty, rates
        self._prices, self._worth, self._step, self._window = prices, worth, step_s, window
        self._n = self._n_best = 0
        self._survival, self._undoing, self._ahead = 1.0, undoing, ahead
        self._gain, self._gained = 0.0, list[float]()
        self._best = -prices[1]  # the value of verifying the best part so far

    def keep_going(self, confidences: Sequence[float]) -> bool:
        """Whether the next tokens are expected to be worth more than what there is.

        However many of them: prices have steps, so one token may not pay alone.
        """
        self._read(confidences)
        survival, seconds = self._survival, 0.0
        gained = self._gained.copy() if self._undoing.seconds else []  # nobody else looks back
        gain, rates = self._gain, self._rates
        for j in range(self._n, self._window):
            survival *= rates[j]
            gain += survival
            gained.append(gain)
            seconds += self._step
            if self._value(j + 1, gain, survival, gained) - seconds > self._best:
                return True
        return False

    def verify(self, confidences: Sequence[float]) -> int:
        """How many of the drafted tokens are worth a row."""
        self._read(confidences)
        return self._n_best

    def _read(self, confidences: Sequence[float]) -> None:
        """Take in the tokens drafted since the last call."""
        for sure in confidences[self._n :]:
            self._n += 1
            self._survival /= 1.0 + self._odds[CELL_OF[int(sure * STEPS)]] * self._difficulty
            self._gain += self._survival
            self._gained.append(self._gain)
            value = self._value(self._n, self._gain, self._survival, self._gained)
            if value >= self._best:
                self._best, self._n_best = value, self._n

    def _value(self, n: int, gain: float, survival: float, gained: Sequence[float]) -> float:
        """Of verifying all of n tokens, so many of which are expected to hold; `survival`: the
        chance that all do; `gained`: the same for fewer tokens, where it matters."""
        value = self._worth * gain - self._prices[n + 1]
        if self._ahead:
            won_s, cost_s = self._ahead[min(n, len(self._ahead)) - 1]
            value += survival * self._rates[min(n, len(self._rates) - 1)] * won_s - cost_s
        return value - self._undoing.expected_s(gained, n) if self._undoing.seconds else value
