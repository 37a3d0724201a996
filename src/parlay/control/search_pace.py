"""When to search for a draft: where searching takes much of a fast pass and finds nothing, seldom.

Knows times only. To ask the proposers and to weigh what they say takes a tenth of a millisecond or
three: nothing beside a pass of fifty, a tenth of one that takes three.
"""

from __future__ import annotations

import math
from collections import deque

# Up to this share of a pass is searched without a thought; beyond it, so much is aimed at.
_HARMLESS, _AIM = 0.01, 0.004
_LONGEST = 64  # rounds from one search to the next
# The same where to search several texts is dear: drafts that are followed while a device computes
# tell sooner that they repeat themselves, and cost nothing.
_LONGEST_OF_SEVERAL = 128
# Searches in a row whose offers proved right, though nobody bet on them: the text repeats itself,
# and a bet wants evidence. What such searches may take, in passes; a bet gives it back, and time
# does slowly: where prices forbid every bet, all that is right is of no use.
_ROW, _PATIENCE, _PATIENCE_BACK = 3, 0.5, 0.0005
_N_FRUITLESS = 16  # harmless searches in a row that find nothing, before a round goes without one
# To search several texts may take a quarter of a pass, and a bet wants most of them to repeat
# themselves: where it takes more than this it is done seldom from the first, unless one is noticed,
# with so much of the patience. As long as nobody knows what it takes, so many are searched.
_DEAR, _SEVERAL, _SAMPLE = 0.05, 0.5, 2
_KEPT = 0.9  # the times of passes are averaged over about ten rounds
# Of searches the middle one of so many counts, once there are a few: the first one of a grammar
# takes as long as ten others, and an average would take it for what all of them cost. Of rounds
# without one the shortest of so many does: whoever took a slow one for what all take, would take
# searches for harmless and see no other.
_N_TIMES, _FEW = 5, 2


class SearchPace:
    """How long a search and a plain pass take, and how often searches were in vain of late."""

    __slots__ = (
        "_fruitless",
        "_glances",
        "_idles_s",
        "_n_right",
        "_n_texts",
        "_n_waited",
        "_noticed",
        "_pass_s",
        "_patience",
        "_searches_s",
        "_spare",
        "share",
    )

    def __init__(self, *, glances: bool = True) -> None:
        """`glances`: whether somebody follows texts that are not searched, and notices."""
        self._glances = glances
        self._searches_s: deque[float] = deque(maxlen=_N_TIMES)  # of one text
        self._idles_s: deque[float] = deque(maxlen=_N_TIMES)
        self._pass_s = 0.0
        self.share = 0.0  # what a search takes of a pass, beyond what comes before any pass
        self._fruitless = 0.0  # what searches in vain took since the last bet, in passes
        self._n_waited = 0
        self._n_right, self._patience = 0, _PATIENCE
        self._n_texts = 1  # of the coming round
        self._noticed = False
        self._spare = _N_FRUITLESS * _HARMLESS  # what they may take where a text was noticed

    @property
    def interval(self) -> int:
        """Rounds from one search to the next."""
        # Before any round goes without a search, all in vain may take what harmless ones would.
        eager = self._n_texts <= 1 or self.share <= _DEAR
        if self.share <= _HARMLESS or (eager and self._fruitless < _N_FRUITLESS * _HARMLESS):
            return 1
        if self._n_right >= _ROW and self._patience_left >= self.share:
            return 1
        if self._glances and not eager:
            return _LONGEST_OF_SEVERAL
        return min(_LONGEST, math.ceil(self.share / _AIM))

    @property
    def rests(self) -> bool:
        """Whether `due` will say no."""
        return not self._wakes and self._n_waited + 1 < self.interval

    @property
    def _patience_left(self) -> float:
        return self._patience - (_SEVERAL * _PATIENCE if self._n_texts > 1 else 0.0)

    @property
    def _wakes(self) -> bool:
        return self._noticed and self._spare >= min(self.share, _N_FRUITLESS * _HARMLESS)

    def notice(self) -> None:
        """A text seems to repeat itself: worth a search, while there is time to spare."""
        self._noticed = True

    def wake(self) -> None:
        """Somebody has weighed it already: the next round is worth a search in any case."""
        self._noticed, self._spare = True, max(self._spare, self.share)

    def due(self, n_texts: int = 1) -> int:
        """How many texts to search in the coming round; called once for each round."""
        rests, self._n_texts = self.rests, n_texts
        self._n_waited = self._n_waited + 1 if rests else 0
        known = len(self._searches_s) >= _FEW
        return 0 if rests else n_texts if known else min(n_texts, _SAMPLE)

    def observe(
        self,
        search_s: float,
        pass_s: float,
        *,
        searched: int,
        of: int = 1,
        found: bool,
        right: bool = False,
    ) -> None:
        """A round, perhaps after the next one is under way: what came before its pass, the pass,
        how many of its texts were searched, whether anything was drafted, and whether what was
        offered or drafted proved right. A bet that is lost gives nothing back."""
        most = _N_FRUITLESS * _HARMLESS
        if found:
            self._noticed = right
            if right:
                self._fruitless, self._spare, self._patience = 0.0, most, _PATIENCE
            return
        self._pass_s = _averaged(self._pass_s, pass_s)
        self._spare = min(most, self._spare + _AIM)
        self._patience = min(_PATIENCE, self._patience + _PATIENCE_BACK)
        if searched:
            self._searches_s.append(search_s / searched)
        else:
            self._idles_s.append(search_s)
        self.share = self._measured_share(of)
        if searched:
            self._observe_search(self.share * searched / of, right)

    def _measured_share(self, n_texts: int) -> float:
        times = sorted(self._searches_s)
        if not self._pass_s or len(times) < _FEW:
            return 0.0
        idle_s = min(self._idles_s) if len(self._idles_s) >= _FEW else 0.0
        search_s = n_texts * times[(len(times) - 1) // 2]
        return max(0.0, search_s - idle_s) / self._pass_s

    def _observe_search(self, spent: float, right: bool) -> None:
        """In vain, unless its offer proved right and there is patience left."""
        noticed, self._noticed = self._noticed, False
        self._n_right = (_ROW if noticed else self._n_right + 1) if right else 0
        if right and self._patience_left >= spent:
            self._patience -= spent
            return
        self._fruitless += spent
        if noticed:
            self._spare -= spent


def _averaged(before: float, now: float) -> float:
    """One slow round among many is the machine's doing, and so is a first one."""
    if not before or 2 * now < before:
        return now
    return _KEPT * before + (1 - _KEPT) * min(now, 3 * before)
