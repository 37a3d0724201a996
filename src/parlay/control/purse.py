"""What may be lost: a signed purse for every answer, a bank between answers, and one pool for all.

Knows plain passes, the unit of everything here; neither seconds nor tokens' chances. The two
promises, by arithmetic:

* *A lone answer*: a bet is made only if its worst case is within `Purse.left`. After it `net` is no
  less than -(max(stake, SHARE * tokens) + max(LENT, that bet)), whatever proposers say.
* *Several at a time*: a bet is made only if its worst case is within `Pool.left`. What passes lose
  over plain ones flows into a bucket that leaks; it never overflows, so that any stretch of
  STRETCH passes loses no more than SHARE of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

SHARE = 0.02  # of the tokens said: what may always be lost
FIRST, STAKE = 0.5, 3.75  # passes that the first answer may lose from its start; the most any may
SAVED, WON = 16.0, 0.15  # the most that is saved for later answers, and their part of what was won
LENT = 5.0  # passes lent at most for drafts that were vetoed and right, or one bet
# Of the tokens that an answer may have: the most that it may stake, and be lent.
EACH, LEND = 0.045, 0.05
STRETCH = 256  # passes of which several answers together lose no more than SHARE
LEAK = 0.01  # of a pass: what the pool forgets with each; the rest of SHARE is its size
GUARD, GUARDED = 0.7, 8.0  # of its tokens, or passes: what one answer may lose to the others


@dataclass(slots=True)
class Purse:
    """What one answer won or lost over plain decoding, and may lose from now on."""

    stake: float
    most_lent: float = inf
    n: int = 0  # tokens said
    net: float = 0.0
    missed: float = 0.0  # what vetoed drafts would have won, less what they would have lost
    waited: float = 0.0  # what it won or lost beside others, by their bets and its own

    def left(self, worst: float) -> float:
        """What a bet may lose that loses so much at worst."""
        allowed = max(self.stake, SHARE * self.n)
        return allowed + self.net + min(self.missed, max(worst, LENT), self.most_lent)

    @property
    def guard(self) -> float:
        """What the bets of several may still cost this one."""
        return max(GUARDED, GUARD * self.n) + self.waited

    def miss(self, passes: float) -> None:
        """A vetoed draft would have won so much, or lost it."""
        self.missed = max(0.0, self.missed + passes)


class Bank:
    """What earlier answers left unspent, for the stakes of later ones."""

    def __init__(self, saved: float = FIRST) -> None:
        self.saved = saved

    def open(self, n_tokens: int) -> Purse:
        """An answer begins, of so many tokens at most."""
        stake = min(STAKE, self.saved, EACH * n_tokens)
        self.saved -= stake
        return Purse(stake, LEND * n_tokens)

    def close(self, purse: Purse) -> None:
        """An answer has ended."""
        unspent = max(0.0, max(purse.stake, SHARE * purse.n) + min(0.0, purse.net))
        self.saved = min(SAVED, self.saved + unspent + WON * max(0.0, purse.net))


class Pool:
    """What several answers together may lose, in passes of the average of them."""

    SIZE = (SHARE - LEAK) * STRETCH

    def __init__(self) -> None:
        self.lost = self.SIZE - FIRST

    def left(self, worst: float, purses: Sequence[Purse]) -> float:
        """What a bet may lose that loses so much at worst."""
        missed = sum([purse.missed for purse in purses]) / len(purses)
        return self.SIZE - self.lost + min(missed, max(worst, LENT))

    def book(self, won: float) -> None:
        """A pass won or lost so much."""
        self.lost = max(0.0, self.lost - LEAK - won)
