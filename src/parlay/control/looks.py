"""Looks: blocks that a drafter fills in to be compared with the text, not to be verified.

Knows counts only. A bet on a block changes the shape of the target's pass, there and back, which
costs several passes on a GPU. A block that is left out of the pass costs a part of one, and tells
as much: whether what it says comes.
"""

from __future__ import annotations

# Rounds from one look to the next: after one that showed little, twice as many and some more.
_MORE, _LONGEST, _LITTLE = 2, 512, 1
# No more right tokens than so many prove nothing; one that showed little takes half of them away.
_N_CHANCE, _KEPT = 8, 0.5


class Looks:
    """What was seen of one drafter of late, and when to look again."""

    __slots__ = ("_interval", "_n_right", "_n_waited")

    def __init__(self) -> None:
        self._n_waited, self._interval = 0, 1
        self._n_right = 0.0

    @property
    def vouch(self) -> bool:
        """Whether enough came of it to bet on more."""
        return self._n_right > _N_CHANCE

    def due(self) -> bool:
        """Whether to look in the coming round, in which it does not pay to bet."""
        self._n_waited += 1
        return self._n_waited >= self._interval

    def asked(self) -> None:
        self._n_waited = 0

    def saw(self, n_right: int) -> None:
        """So many tokens of a look came."""
        little = n_right <= _LITTLE
        self._interval = min(_LONGEST, 2 * self._interval + _MORE) if little else 1
        self._n_right = (_KEPT if little else 1.0) * self._n_right + n_right
