"""What may be lost on a bet, at worst and on average, and the good offers that this refuses.

Knows seconds and chances; nothing of passes or texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parlay.control.evidence import Evidence


@dataclass(frozen=True, slots=True)
class Stake:
    """What may be lost on one offer."""

    allowance: float  # at worst
    at_risk: float  # on average: more at worst, where the text has shown that it is unlikely
    most_s: float  # ever
    evidence: Evidence

    @property
    def bearable(self) -> float:
        """What a loss is weighed against: more, where the text has shown something."""
        return max(self.allowance, self.at_risk) if self.evidence.tells else self.allowance

    def bound(self, plain_s: float, gained: Sequence[float]) -> Bound:
        """What may be lost on drafts of it; `gained`: tokens expected to hold, by window."""
        shown_s = self._shown_s(plain_s, gained)
        return Bound(max(0.0, self.allowance), shown_s, plain_s, len(gained))

    def _shown_s(self, plain_s: float, gained: Sequence[float]) -> float:
        """The largest loss that is on average no more than may be lost so.

        Each right token makes up for a pass of it. How likely they are tell both the confidences
        and what the text has shown: the less of the two counts.
        """
        if self.at_risk <= 0.0 or not self.evidence.tells:
            return 0.0
        n_most = min(len(gained), int(self.most_s / plain_s) + 1)
        left_s, lost_s, before = self.at_risk, 0.0, 0.0
        for gain, chance in zip(gained, self.evidence.chances(n_most), strict=False):
            doubt_s = (1.0 - min(chance, gain - before)) * plain_s
            if doubt_s > left_s:
                return min(self.most_s, lost_s + plain_s * left_s / doubt_s)
            left_s, lost_s, before = left_s - doubt_s, lost_s + plain_s, gain
        return min(self.most_s, lost_s)


@dataclass(frozen=True, slots=True)
class Bound:
    """What a bet may lose, should all of its draft be wrong."""

    sure_s: float  # whatever the text has shown
    shown_s: float  # by what it has shown
    plain_s: float
    n_tokens: int  # of the longest draft

    def within(self, allowance: float) -> Bound:
        """The same for another allowance."""
        return Bound(max(0.0, allowance), self.shown_s, self.plain_s, self.n_tokens)

    def allows(self, loss_s: float, window: int) -> bool:
        """Whether so much may be risked on so many tokens; right ones must be able to make up."""
        if loss_s <= self.sure_s:  # who has lost may still bet for nothing
            return True
        return loss_s <= self.shown_s and loss_s < min(window, self.n_tokens) * self.plain_s


@dataclass(frozen=True, slots=True)
class Refusal:
    """An offer that looks good but may not be bet on, for it could lose too much."""

    proposer: str
    right_s: float  # what its next token would win if it is right
    wrong_s: float  # and lose if it is wrong
