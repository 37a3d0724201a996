"""Whether a route's requests speculate: measured time per token, both ways, and traffic follows.

Pure: sees seconds and tokens, never text, servers or clocks. One `RouteTiming` for each rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Why = Literal["measuring", "faster", "exploring"]
EXPLORE_SHARE = 0.05  # of requests, to the slower side
MIN_ANSWERS = 3  # on each side before they are compared
_FORGET = 0.95  # weight of all earlier answers when one comes
_MARGIN = 0.03  # the other side must be so much faster to take over
_DRIFT = 1.3  # the leader's time moved so far: look at the other side as often as at first
_MAX_BACKOFF = 16  # looks at the slower side become rarer, down to this much


@dataclass(frozen=True, slots=True)
class SideChoice:
    """One decision, and why."""

    speculate: bool
    why: Why


class Side:
    """One way of decoding on one route: recent seconds over recent tokens."""

    def __init__(self) -> None:
        self.n_answers = 0
        self._seconds = 0.0
        self._tokens = 0.0

    def add(self, seconds: float, tokens: int) -> None:
        self.n_answers += 1
        self._seconds = _FORGET * self._seconds + seconds
        self._tokens = _FORGET * self._tokens + tokens

    @property
    def s_per_token(self) -> float | None:
        return self._seconds / self._tokens if self._tokens else None


class RouteTiming:
    """The question of one route.

    Of n requests at most `explore_share * n + MIN_ANSWERS` go to the side believed slower.
    """

    def __init__(self, explore_share: float = EXPLORE_SHARE) -> None:
        self._share = explore_share
        self.sides = {True: Side(), False: Side()}
        self.leader = True  # until measured: its pool was set up to be faster
        self._n_first = 0  # requests sent to the other side before anything is known
        self._turn = False
        self._backoff = 1
        self._owed = 0.0  # looks at the slower side that are due
        self._usual: float | None = None  # the leader's time when the slower side was last seen

    def choose(self) -> SideChoice:
        """For one request; every call counts as one."""
        why: Why = "faster" if self.compared else "measuring"
        self._turn = not self._turn
        if self._share and not self.compared and self._n_first < MIN_ANSWERS and not self._turn:
            self._n_first += 1
            return SideChoice(not self.leader, "measuring")
        self._owed += self._share / self._backoff
        if self._owed < 1:
            return SideChoice(self.leader, why)
        self._owed -= 1
        self._backoff = min(2 * self._backoff, _MAX_BACKOFF)
        self._usual = self.sides[self.leader].s_per_token
        return SideChoice(not self.leader, "exploring" if self.compared else "measuring")

    def observe(self, speculated: bool, seconds: float, tokens: int) -> None:
        """An answer: the time it took to decode so many tokens."""
        if tokens < 1 or seconds <= 0:
            return
        self.sides[speculated].add(seconds, tokens)
        if self.compared and self._other_is_faster():
            self.leader = not self.leader
            self._backoff, self._owed = 1, 0.0
        elif self._drifted():
            self._backoff = 1

    @property
    def compared(self) -> bool:
        return all(side.n_answers >= MIN_ANSWERS for side in self.sides.values())

    def _other_is_faster(self) -> bool:
        ours, theirs = self.sides[self.leader].s_per_token, self.sides[not self.leader].s_per_token
        return ours is not None and theirs is not None and theirs < ours * (1 - _MARGIN)

    def _drifted(self) -> bool:
        """The load or the texts changed: what was seen of the other side may no longer hold."""
        now, usual = self.sides[self.leader].s_per_token, self._usual
        return bool(now and usual) and not 1 / _DRIFT < now / usual < _DRIFT  # type: ignore[operator]
