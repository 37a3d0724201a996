"""When to search for a draft: where searching takes much of a fast pass and finds nothing, seldom.

Knows times only. To ask the proposers and to weigh what they say takes a tenth of a millisecond:
nothing beside a pass of ten, a tenth of one that takes a single millisecond.
"""

from __future__ import annotations

import math

# Up to this share of a pass is searched without a thought; beyond it, so much is aimed at.
_HARMLESS, _AIM = 0.02, 0.01
_LONGEST = 16  # rounds from one search to the next
_N_FRUITLESS = 16  # harmless searches in a row that find nothing, before a round goes without one
_KEPT = 0.9  # times are averaged over about ten rounds


class SearchPace:
    """How long a search and a plain pass take, and how often searches were in vain of late."""

    __slots__ = ("_n_fruitless", "_n_waited", "_pass_s", "_search_s", "_searched")

    def __init__(self) -> None:
        self._search_s = self._pass_s = 0.0
        self._n_fruitless = self._n_waited = 0
        self._searched = False

    @property
    def interval(self) -> int:
        """Rounds from one search to the next."""
        share = self._search_s / self._pass_s if self._pass_s else 0.0
        # Before any round goes without a search, all in vain may take what harmless ones would.
        if share <= _HARMLESS or self._n_fruitless * share < _N_FRUITLESS * _HARMLESS:
            return 1
        return min(_LONGEST, math.ceil(share / _AIM))

    @property
    def rests(self) -> bool:
        """Whether `due` will say no."""
        return self._n_waited + 1 < self.interval

    def due(self) -> bool:
        """Whether to search in the coming round; called once for each."""
        self._n_waited += 1
        self._searched = self._n_waited >= self.interval
        if self._searched:
            self._n_waited = 0
        return self._searched

    def observe(self, search_s: float, pass_s: float, found: bool) -> None:
        """A round: what came before its pass, the pass, and whether anything was drafted."""
        if found:
            self._n_fruitless = 0
            return
        self._pass_s = _averaged(self._pass_s, pass_s)
        if self._searched:
            self._n_fruitless += 1
            self._search_s = _averaged(self._search_s, search_s)


def _averaged(before: float, now: float) -> float:
    """One slow round among many is the machine's doing."""
    if not before:
        return now
    return _KEPT * before + (1 - _KEPT) * min(now, 3 * before)
