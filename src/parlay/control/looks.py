"""Looks: drafts that are made to be compared with the text, not to be verified.

Knows counts only. A bet changes the shape of the target's pass, there and back, which costs several
passes on a GPU. A block that is left out of the pass costs a part of one, a draft model's draft
that is made while the target goes on next to nothing, and both tell as much: whether what they say
comes.
"""

from __future__ import annotations

# Tokens from one look to the next: after one that showed little, twice as many and some more.
_MORE, _LONGEST, _LITTLE = 2, 512, 1
# No more right tokens than so many prove nothing; one that showed little takes half of them away.
_N_CHANCE, _KEPT = 8, 0.5
# Of those beside passes so many are made in a row: a search in between would take longer.
IN_A_ROW = 3
# They cost next to nothing.
_CHEAP_LONGEST, _CHEAP_KEPT = 32, 0.8


class Looks:
    """What was seen of one drafter of late, and when to look again."""

    __slots__ = ("_interval", "_kept", "_longest", "_n_right", "_n_waited")

    def __init__(self, *, cheap: bool = False) -> None:
        """`cheap`: made beside passes, which are hardly the slower for it."""
        self._n_waited, self._interval = 0, 1
        self._n_right = 0.0
        self._longest, self._kept = (_CHEAP_LONGEST, _CHEAP_KEPT) if cheap else (_LONGEST, _KEPT)

    @property
    def vouch(self) -> bool:
        """Whether enough came of it to bet on more."""
        return self._n_right > _N_CHANCE

    def due(self, n_tokens: int = 1) -> bool:
        """Whether to look in the coming round, in which it does not pay to bet; how many tokens
        came since this was last asked."""
        self._n_waited += n_tokens
        return self._n_waited >= self._interval

    def asked(self) -> None:
        self._n_waited = 0

    def saw(self, n_right: int) -> None:
        """So many tokens of a look came."""
        little = n_right <= _LITTLE
        self._interval = min(self._longest, 2 * self._interval + _MORE) if little else 1
        self._n_right = (self._kept if little else 1.0) * self._n_right + n_right
