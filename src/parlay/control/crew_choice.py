"""Which crew makes the next pass.

Knows seconds and the load of others, neither llama.cpp nor clocks: time is what passes took. While
others leave the cores alone the rule makes every pass. Where they do not, a thread for each core
that they leave is the first guess, and all of them asleep where they leave none: then every thread
gets its share. Other crews race the chosen one; races may cost a share of the time and no more. Who
won is kept for each number of cores that others want.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parlay.control.crew import Crew
from parlay.control.crew_race import N_PASSES, Race

# What races may cost, in passes of the chosen crew: a share of all of them, so many in advance
# under a new load, and so many saved up.
_SHARE, _ADVANCE, _MOST_SAVED = 0.02, 10.0, 30.0
# A challenger's passes in a short race, and how many times slower than usual one pass of threads
# that spin for taken cores may be.
_N_CHALLENGED, _HOPELESS = 3 * N_PASSES, 4.0
# A crew that has not raced under this load, over the chosen one's time: threads that spin for a
# core that is taken are mostly ruinous, so they come last.
_UNKNOWN, _CROWDED = 1.5, 4.0
# Seconds of passes after which a crew that lost may race again, doubled each time.
_FIRST_WAIT_S, _LAST_WAIT_S = 4.0, 128.0
# How often others' load is looked at, how far from the last level it must be to be another, and for
# how long.
_LOOK_EVERY_S, _OTHER_LEVEL, _BELIEVED_S = 0.25, 0.6, 0.4
_N_LEVELS = 8  # at most, of others that use as many cores as the rule has threads
_FOLLOWS = 0.3  # how far one pass moves what is usual
_MAX_SHAPES = 512


@dataclass(frozen=True, slots=True)
class OtherLoad:
    """Cores that other processes want, as seen for so many seconds."""

    cores: float
    seconds: float


Load = Callable[[], OtherLoad]  # since the last look


def nobody() -> OtherLoad:
    """Others who want nothing."""
    return OtherLoad(0.0, math.inf)


def _threads(crew: Crew) -> int:
    return crew.threads


@dataclass(slots=True)
class _Lost:
    """A crew that did not win: its time over the chosen one's, and when it may race again."""

    over: float
    at: float
    wait_s: float = _FIRST_WAIT_S


class CrewChoice:
    """Follows the machine."""

    def __init__(self, candidates: Sequence[Crew], load: Load = nobody) -> None:
        """`candidates`: the rule first."""
        self.rule = self.chosen = candidates[0]
        self.level = 0  # of others' load
        self._per_level = max(1.0, self.rule.threads / _N_LEVELS)  # cores
        self._candidates = tuple(candidates)
        self._winners: dict[int, Crew] = {}  # by level
        self._lost: dict[tuple[Crew, int], _Lost] = {}
        self._race: Race | None = None
        self._usual: dict[Hashable, float] = {}  # seconds of the chosen crew's passes by shape
        self._read_load = load
        self._looked_at, self._other_s = 0.0, 0.0
        self._now = 0.0  # seconds of passes so far
        self._credit = 0.0  # passes

    @property
    def now(self) -> Crew:
        """For the next pass that decodes; prompts are the chosen crew's."""
        race = self._race
        return race.challenger if race is not None and race.challenged else self.chosen

    @property
    def racing(self) -> bool:
        return self._race is not None

    def over(self, crew: Crew) -> float:
        """Its time over the chosen crew's, as far as races under this load tell."""
        if self._race is not None and crew == self._race.challenger and self._race.over:
            return self._race.over
        lost = self._lost.get((crew, self.level))
        return 1.0 if lost is None or crew == self.chosen else lost.over

    def refuse(self, crew: Crew) -> None:
        """It may not make this pass: another does, and later it is asked again."""
        if self._race is not None and self._race.challenger == crew:
            self._lose(crew, self.over(crew))
        if self.chosen == crew != self.rule:
            self._race = None
            self._lost[crew, self.level] = _Lost(1.0, self._now)
            sleeps = self.level > 0 and self._asleep in self._candidates
            self._take(self._asleep if sleeps else self.rule)

    def look(self) -> None:
        """Before a text is read, and now and then while there is none: what others want by now."""
        if self._race is None:
            self._follow(self._look())

    def observe(self, crew: Crew, shape: Hashable, seconds: float) -> None:
        """A pass of this shape took `seconds` under a crew."""
        if crew not in self._candidates or seconds <= 0:
            return
        self._now += seconds
        if self.level > 0:
            self._earn(_SHARE)
        if self._race is not None:
            if crew == self.now:
                self._observe_race(self._race, shape, seconds)
            return
        if crew == self.chosen:
            self._observe_chosen(shape, seconds)
        if self._now - self._looked_at >= _LOOK_EVERY_S:
            self.look()
        if self.level > 0 and not self._other_s:
            self._begin_race()

    # -- the load of others ---------------------------------------------------

    def _look(self) -> float:
        """The level there would be; how long it has been another is noted."""
        look = self._read_load()
        self._looked_at, load = self._now, look.cores / self._per_level
        is_other = abs(load - self.level) >= _OTHER_LEVEL
        self._other_s = self._other_s + look.seconds if is_other else 0.0
        return load

    def _follow(self, load: float) -> None:
        """Where others took cores or left some, who won under that load is chosen again."""
        if self._other_s < _BELIEVED_S:
            return
        self._other_s, self.level = 0.0, max(0, round(load))
        if self.level > 0 and self.level not in self._winners:
            self._winners[self.level] = self._first()
            self._credit = max(self._credit, _ADVANCE)
        self._take(self._winners.get(self.level, self.rule))

    @property
    def _free(self) -> float:
        """Cores that others leave."""
        return self.rule.threads - self.level * self._per_level

    def _first(self) -> Crew:
        """Where nobody has raced yet."""
        spinning = [crew for crew in self._candidates if not crew.sleeps]
        fitting = [crew for crew in spinning if crew.threads <= self._free]
        if fitting:
            return max(fitting, key=_threads)
        return self._asleep if self._asleep in self._candidates else min(spinning, key=_threads)

    @property
    def _asleep(self) -> Crew:
        return Crew(self.rule.threads, sleeps=True)

    def _take(self, crew: Crew) -> None:
        if crew != self.chosen:
            self._usual.clear()
        self.chosen = crew
        if self.level > 0:
            self._winners[self.level] = crew

    # -- what is usual --------------------------------------------------------

    def _observe_chosen(self, shape: Hashable, seconds: float) -> None:
        """A race is short, and a lucky one no proof: who spins for a taken core may be gone."""
        if self._is_crowded(self.chosen) and self._slowness(shape, seconds) > _HOPELESS:
            self._lose(self.chosen, _HOPELESS)
            self._take(self._first())
        else:
            self._learn(shape, seconds)

    def _is_crowded(self, crew: Crew) -> bool:
        """Whether it has more threads than others leave cores, and all of them spin."""
        return not crew.sleeps and crew.threads > max(1.0, self._free)

    def _learn(self, shape: Hashable, seconds: float) -> None:
        if len(self._usual) >= _MAX_SHAPES:
            self._usual.clear()
        usual = self._usual.get(shape, seconds)
        self._usual[shape] = usual + _FOLLOWS * (seconds - usual)

    def _slowness(self, shape: Hashable, seconds: float) -> float:
        """A pass over what the chosen crew takes, for this shape or the nearest thing to it."""
        return seconds / (self._usual.get(shape) or max(self._usual.values(), default=seconds))

    def _earn(self, passes: float) -> None:
        self._credit = min(self._credit + passes, _MOST_SAVED)

    # -- races ----------------------------------------------------------------

    def _begin_race(self) -> None:
        """Against the crew that may gain most, if its cost can be paid."""
        due = [crew for crew in self._candidates if crew != self.chosen and self._is_due(crew)]
        if not due or not self._usual:
            return
        crew = min(due, key=self._expected)
        if max(0.0, self._expected(crew) - 1.0) * _N_CHALLENGED <= self._credit:
            self._race = Race(crew)

    def _is_due(self, crew: Crew) -> bool:
        lost = self._lost.get((crew, self.level))
        return lost is None or self._now - lost.at >= lost.wait_s

    def _expected(self, crew: Crew) -> float:
        if (crew, self.level) in self._lost:
            return self.over(crew)
        return _CROWDED if self._is_crowded(crew) else _UNKNOWN

    def _observe_race(self, race: Race, shape: Hashable, seconds: float) -> None:
        slowness, challenged = self._slowness(shape, seconds), race.challenged
        race.add(shape, seconds)
        if not challenged:
            self._learn(shape, seconds)
        else:
            self._earn(1.0 - slowness)
            hopeless = slowness > _HOPELESS and self._is_crowded(race.challenger)
            if hopeless or self._credit < 0:
                self._lose(race.challenger, race.over or min(slowness, _HOPELESS))
                return
        if race.is_over:
            self._judge(race)

    def _judge(self, race: Race) -> None:
        self._look()
        if self._other_s:
            self._race = None  # the load changed in its middle: it tells nothing
        elif race.won and race.over is not None:
            self._win(race.challenger, race.over)
        else:
            self._lose(race.challenger, race.over or 1.0)

    def _win(self, crew: Crew, over: float) -> None:
        self._race = None
        for other in self._candidates:
            if lost := self._lost.get((other, self.level)):
                lost.over /= over  # they lost to somebody slower
        self._lost[self.chosen, self.level] = _Lost(1.0 / over, self._now)
        self._take(crew)

    def _lose(self, crew: Crew, over: float) -> None:
        self._race = None
        before = self._lost.get((crew, self.level))
        wait_s = _FIRST_WAIT_S if before is None else min(2 * before.wait_s, _LAST_WAIT_S)
        self._lost[crew, self.level] = _Lost(over, self._now, wait_s)

    # -- what is kept ---------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Who won, by load."""
        winners = sorted(self._winners.items())
        return {"winners": [[level, crew.threads, crew.sleeps] for level, crew in winners]}

    def recall(self, record: Mapping[str, Any]) -> None:
        """Who won in an earlier run; raises ValueError or LookupError where it is no record."""
        for level, threads, sleeps in record["winners"]:
            crew = Crew(int(threads), bool(sleeps))
            if int(level) > 0 and crew in self._candidates:
                self._winners[int(level)] = crew
