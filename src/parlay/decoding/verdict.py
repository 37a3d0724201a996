"""A verdict: what one target pass decided about one draft.

Knows nothing of how the decision was made.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Origin(str, Enum):
    """Where a token of the answer came from."""

    ACCEPTED = "accepted"  # drafted, and the target confirmed it
    RECOVERED = "recovered"  # the target's own, in place of a rejected draft token
    BONUS = "bonus"  # the target's own, after the whole draft was accepted
    PLAIN = "plain"  # the target's own, nothing was drafted


@dataclass(frozen=True, slots=True)
class Verdict:
    """The tokens of one round: the accepted ones, then (unless the text ended) one of its own."""

    tokens: tuple[int, ...]
    n_drafted: int  # draft tokens that count: those after an accepted end of text do not
    n_accepted: int

    def first(self, n: int) -> Verdict:
        """This verdict as if the text had ended after n of its tokens."""
        if n >= len(self.tokens):
            return self
        return Verdict(self.tokens[:n], n, n)  # only the last one can be the target's own

    @property
    def origins(self) -> tuple[Origin, ...]:
        accepted = (Origin.ACCEPTED,) * self.n_accepted
        if len(self.tokens) == self.n_accepted:
            return accepted
        return (*accepted, self._own)

    @property
    def _own(self) -> Origin:
        if self.n_drafted == 0:
            return Origin.PLAIN
        return Origin.BONUS if self.n_accepted == self.n_drafted else Origin.RECOVERED
