"""What a text itself has shown of a proposer: how often it was right, bet on or not.

Knows counts, neither tokens nor time. Confidences are a proposer's own word, and a text can make
all of them wrong; what it was seen to get right is no gamble.
"""

from __future__ import annotations

# A wrong token says that the text has changed: what was right before it counts for so much less.
_KEPT = 0.5
# No more right tokens than so many prove nothing: any two texts agree for a while.
_N_CHANCE = 5


class Evidence:
    """Tokens of one proposer that proved right, and wrong, in one text."""

    __slots__ = ("n_right", "n_wrong")

    def __init__(self) -> None:
        self.n_right = self.n_wrong = 0.0

    def observe(self, n_right: int, wrong: bool) -> None:
        """So many leading tokens of an offer were right, and whether the one after them was not."""
        self.n_right += n_right
        if wrong:
            self.n_right *= _KEPT
            self.n_wrong = _KEPT * self.n_wrong + 1.0

    @property
    def tells(self) -> bool:
        """Whether enough was right to tell anything."""
        return self.n_right > _N_CHANCE

    def chances(self, n: int) -> list[float]:
        """That the next token is right, the next two are, and so on, if nothing else were known.

        Laplace's rule of succession: whatever chance a token may have, all were equally likely
        before the first one was seen.
        """
        found, likely, tried = [], 1.0, self.n_right + self.n_wrong
        for i in range(n):
            likely *= (self.n_right + 1.0 + i) / (tried + 2.0 + i)
            found.append(likely)
        return found
