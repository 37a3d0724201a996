"""What a draft is worth in seconds: tokens it is expected to save, less the rows it takes.

Pure functions over odds and prices; they know no controller. A token is worth the time it would
otherwise take, and that depends on how things go: where a draft holds, the next one mostly holds
too, so its later tokens would soon be had cheaply anyway. Hence they are valued at the rate of the
world in which the first one is right. Without that, every weak match would be bet on to its end.
"""

from __future__ import annotations

from collections.abc import Sequence

from parlay.control.survival import CELL_OF, STEPS

# Later tokens are hardly ever reached: looking further does not pay.
_HOPELESS = 0.03
# The rate where a draft holds is a little less than its confidences promise.
_TAIL = 0.9


def gains(confidence: Sequence[float], odds: Sequence[float], difficulty: float) -> list[float]:
    """Tokens expected to be accepted, by how many are verified."""
    survival, gain, found = 1.0, 0.0, []
    for sure in confidence:
        survival /= 1.0 + odds[CELL_OF[int(sure * STEPS)]] * difficulty
        gain += survival
        found.append(gain)
        if survival < _HOPELESS:
            break
    return found


def position_rates(odds: Sequence[float], difficulty: float) -> list[float]:
    """P(token j accepted | those before it were), by position."""
    return [1.0 / (1.0 + each * difficulty) for each in odds]


def worth(gained: Sequence[float], rate: float, share_s: Sequence[float]) -> float:
    """Seconds that an accepted token saves: at `rate`, or at that of a draft that holds.

    Such a draft goes on from its second token: so many tokens in a pass with so many more drafted
    than now; `share_s` are the seconds of it that one sequence carries. A rate that no pass can
    make now is not asked for: the shortest pass would seem the best, and nothing be bet on.
    """
    best = attainable = before = 0.0
    for gain, seconds in zip(gained, share_s, strict=False):
        if gain > best * seconds:
            best = gain / seconds
        if 1.0 + before > attainable * seconds:
            attainable = (1.0 + before) / seconds
        before = gain
    return 1.0 / max(min(rate, attainable), _TAIL * best / gained[0])
