"""Which crew makes the next pass: how many threads, spinning or asleep at barriers.

Knows seconds and the load of others, neither llama.cpp nor clocks: time is what passes took. While
others leave the cores alone the rule makes every pass. Where they do not, another crew races the
chosen one, both in turn, a few passes each: what disturbs the machine meanwhile disturbs both, and
no time of another minute counts. Who won is kept for each number of cores that others use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

# The share of a busy time that races may cost, and what may be borrowed of it under a new load.
_SHARE, _DEBT_S = 0.03, 0.4
# A race: so many turns each, so many passes a turn; the first of a turn changes the threads and
# does not count. A pass that is so many times slower than the others' ends it at once.
_N_TURNS, _N_PASSES, _HOPELESS = 3, 3, 4.0
# Another crew must be faster by so much to take over.
_BETTER = 0.92
# Seconds of passes after which a crew that lost may race again, doubled each time.
_FIRST_WAIT_S, _LAST_WAIT_S = 4.0, 128.0
_UNKNOWN = 1.5  # times the chosen crew's, a crew that has not raced under this load
# How often others' load is looked at, how far from the last level it must be to be another, and
# how many looks in a row must say so.
_LOOK_EVERY_S, _OTHER_LEVEL, _N_LOOKS = 0.25, 0.6, 2
_N_LEVELS = 8  # at most, of others that use as many cores as the rule has threads
_MAX_SHAPES = 512

Load = Callable[[], float]  # cores that other processes use


@dataclass(frozen=True, slots=True)
class Crew:
    """The threads of a pass, and whether they sleep while they wait for each other."""

    threads: int
    sleeps: bool = False


def crews(most: int, *, can_sleep: bool) -> list[Crew]:
    """Those worth a race where so many threads are the rule, that rule first."""
    counts = dict.fromkeys((most, most - 1, 3 * most // 4, most // 2, most // 4, 1))
    found = [Crew(n) for n in counts if n >= 1]
    if can_sleep:
        found += [Crew(n, sleeps=True) for n in dict.fromkeys((most, most // 2)) if n > 1]
    return found


def _threads(crew: Crew) -> int:
    return crew.threads


@dataclass(slots=True)
class _Lost:
    """A crew that did not win: its time over the chosen one's, and when it may race again."""

    over: float
    at: float
    wait_s: float = _FIRST_WAIT_S


@dataclass(slots=True)
class _Race:
    """The challenger and the chosen crew in turn, the challenger first."""

    challenger: Crew
    n_made: int = 0
    # Seconds of passes that count, by shape: the challenger's and the chosen crew's.
    found: dict[Hashable, tuple[list[float], list[float]]] = field(default_factory=dict)

    @property
    def challenged(self) -> bool:
        """Whether the challenger makes the next pass."""
        return self.n_made // _N_PASSES % 2 == 0

    @property
    def is_over(self) -> bool:
        return self.n_made >= 2 * _N_TURNS * _N_PASSES

    def add(self, shape: Hashable, seconds: float) -> None:
        if self.n_made % _N_PASSES:
            self.found.setdefault(shape, ([], []))[0 if self.challenged else 1].append(seconds)
        self.n_made += 1

    @property
    def over(self) -> float | None:
        """The challenger's time over the chosen crew's, on shapes that both have made."""
        both = [(mine, others) for mine, others in self.found.values() if mine and others]
        if not both:
            return None
        weights = [min(len(mine), len(others)) for mine, others in both]
        logs = [math.log(fmean(mine) / fmean(others)) for mine, others in both]
        return math.exp(sum(w * log for w, log in zip(weights, logs, strict=True)) / sum(weights))


class CrewChoice:
    """Follows the machine."""

    def __init__(self, candidates: Sequence[Crew], load: Load = lambda: 0.0) -> None:
        """`candidates`: the rule first."""
        self.rule = self.chosen = candidates[0]
        self.level = 0  # of others' load
        self._per_level = max(1.0, self.rule.threads / _N_LEVELS)  # cores
        self._candidates = tuple(candidates)
        self._winners: dict[int, Crew] = {}  # by level
        self._lost: dict[tuple[Crew, int], _Lost] = {}
        self._race: _Race | None = None
        self._usual: dict[Hashable, float] = {}  # seconds of the chosen crew's last pass by shape
        self._read_load = load
        self._looked_at, self._n_other = 0.0, 0
        self._now = 0.0  # seconds of passes so far
        self._credit = 0.0

    @property
    def now(self) -> Crew:
        """For the next pass."""
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
            self._end(self._race, self.over(crew))
        if self.chosen == crew != self.rule:
            self._lost[crew, self.level] = _Lost(1.0, self._now)
            self._take(self.rule)

    def begin(self) -> None:
        """A text begins, maybe after a quiet time: the load of now counts at its first pass."""
        if self._race is None:
            self._follow(self._look(), 1)

    def observe(self, crew: Crew, shape: Hashable, seconds: float) -> None:
        """A pass of this shape took `seconds` under a crew."""
        if crew not in self._candidates or seconds <= 0:
            return
        self._now += seconds
        if self.level > 0:
            self._credit = min(self._credit + _SHARE * seconds, _DEBT_S)
        if self._race is not None:
            if crew == self.now:
                self._observe_race(self._race, shape, seconds)
            return
        if crew == self.chosen:
            if len(self._usual) >= _MAX_SHAPES:
                self._usual.clear()
            self._usual[shape] = seconds
        self._look_around()
        if self.level > 0 and not self._n_other:
            self._begin_race(seconds)

    # -- the load of others ---------------------------------------------------

    def _look_around(self) -> None:
        """Where others took cores or left some, who won under that load is chosen again."""
        if self._now - self._looked_at >= _LOOK_EVERY_S:
            self._follow(self._look(), _N_LOOKS)

    def _follow(self, load: float, n_looks: int) -> None:
        """`n_looks`: how many in a row must have found another load."""
        if self._n_other < n_looks:
            return
        self._n_other, self.level = 0, max(0, round(load))
        if self.level > 0 and self.level not in self._winners:
            self._winners[self.level] = self._first()
            self._credit = _DEBT_S
        self._take(self._winners.get(self.level, self.rule))

    def _first(self) -> Crew:
        """Where nobody has raced yet: a thread for each core that others leave."""
        free = self.rule.threads - self.level * self._per_level
        spinning = [crew for crew in self._candidates if not crew.sleeps]
        fitting = [crew for crew in spinning if crew.threads <= free]
        return max(fitting, key=_threads, default=min(spinning, key=_threads))

    def _look(self) -> float:
        self._looked_at, load = self._now, self._read_load() / self._per_level
        self._n_other = self._n_other + 1 if abs(load - self.level) >= _OTHER_LEVEL else 0
        return load

    def _take(self, crew: Crew) -> None:
        if crew != self.chosen:
            self._usual.clear()
        self.chosen = crew
        if self.level > 0:
            self._winners[self.level] = crew

    # -- races ----------------------------------------------------------------

    def _begin_race(self, seconds: float) -> None:
        """Against the crew that may gain most, if its cost can be paid."""
        due = [crew for crew in self._candidates if crew != self.chosen and self._is_due(crew)]
        if not due:
            return
        crew = min(due, key=self._expected)
        cost = max(0.0, self._expected(crew) - 1.0) * seconds * _N_TURNS * _N_PASSES
        if cost <= self._credit:
            self._race = _Race(crew)

    def _is_due(self, crew: Crew) -> bool:
        lost = self._lost.get((crew, self.level))
        return lost is None or self._now - lost.at >= lost.wait_s

    def _expected(self, crew: Crew) -> float:
        return self.over(crew) if (crew, self.level) in self._lost else _UNKNOWN

    def _observe_race(self, race: _Race, shape: Hashable, seconds: float) -> None:
        usual = self._usual.get(shape, math.inf)
        hopeless = race.challenged and seconds > _HOPELESS * usual
        if race.challenged:
            self._credit -= max(0.0, seconds - usual)
        race.add(shape, seconds)
        if hopeless:
            self._end(race, _HOPELESS)
        elif race.is_over:
            self._look()
            if self._n_other:
                self._race = None  # the load changed in its middle: it tells nothing
            else:
                self._end(race, race.over)

    def _end(self, race: _Race, over: float | None) -> None:
        """The faster one is chosen; nothing to compare counts as lost."""
        self._race, crew, level = None, race.challenger, self.level
        if over is not None and over < _BETTER:
            for other in self._candidates:
                self._lost.pop((other, level), None)  # they lost to somebody slower
            self._lost[self.chosen, level] = _Lost(1.0 / over, self._now)
            self._take(crew)
            return
        before = self._lost.get((crew, level))
        wait_s = _FIRST_WAIT_S if before is None else min(2 * before.wait_s, _LAST_WAIT_S)
        self._lost[crew, level] = _Lost(over or 1.0, self._now, wait_s)

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
