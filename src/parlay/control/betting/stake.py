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

    def allows(self, loss_s: float, plain_s: float, gained: Sequence[float]) -> bool:
        """Whether a loss of so much, should all of a draft be wrong, may be risked."""
        if loss_s <= max(0.0, self.allowance):  # who has lost may still bet for nothing
            return True
        if self.at_risk <= 0.0 or loss_s > self.most_s:
            return False
        n_needed = int(loss_s / plain_s) + 1  # right tokens that make up for it
        if n_needed > len(gained) or not self.evidence.tells:
            return False
        return self._on_average(loss_s, plain_s, gained[:n_needed]) <= self.at_risk

    def _on_average(self, loss_s: float, plain_s: float, gained: Sequence[float]) -> float:
        """Each right token makes up for a pass of it. How likely they are tell both the confidences
        and what the text has shown: the less of the two counts."""
        shown, before, lost_s = self.evidence.chances(len(gained)), 0.0, loss_s
        for gain, chance in zip(gained, shown, strict=True):
            lost_s -= min(plain_s, loss_s) * min(chance, gain - before)
            loss_s -= plain_s
            before = gain
        return lost_s


@dataclass(frozen=True, slots=True)
class Refusal:
    """An offer that looks good but may not be bet on, for it could lose too much."""

    proposer: str
    right_s: float  # what its next token would win if it is right
    wrong_s: float  # and lose if it is wrong
