"""When to try again what does not seem to pay: seldom, and ever more seldom while it does not.

Counts rounds, knows nothing else.
"""

from __future__ import annotations

_FIRST, _LONGEST = 8, 512
# What has not paid for a while is valued only every so many rounds: that takes time, too.
_LOOK = 4


class Probing:
    """Rounds since something was last done, and how many to wait for before it is tried."""

    __slots__ = ("_interval", "_n_waited")

    def __init__(self) -> None:
        self._n_waited, self._interval = 0, _FIRST

    def too_soon(self) -> bool:
        """Whether this round is too soon to look at it again; if so, it has been waited for."""
        if self._n_waited < _FIRST or self._n_waited % _LOOK == 0:
            return False
        self._n_waited += 1
        return True

    def wait(self) -> bool:
        """One more round without it; whether a try is due."""
        self._n_waited += 1
        return self._n_waited >= self._interval

    def tried(self) -> None:
        """It was tried: if that shows no profit, wait twice as long for the next time."""
        self._n_waited, self._interval = 0, min(_LONGEST, 2 * self._interval)

    def used(self) -> None:
        """It pays: once it does not, a try may come soon."""
        self._n_waited, self._interval = 0, _FIRST
