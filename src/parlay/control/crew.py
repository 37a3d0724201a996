"""Which crew makes the next pass: how many threads, spinning or asleep at barriers, by what passes
take on the machine as it is now.

Knows seconds and the load of others, neither llama.cpp nor clocks: time is what passes took. What
is found is kept for each number of cores that others use. Trials of other crews are paid from a
small share of the time, so that an idle machine notices next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# The share of the time that trials may cost: where others use cores, and where they do not. What
# may be borrowed of it for the first trials under a load.
_SHARE_BUSY, _SHARE, _DEBT_S = 0.02, 0.01, 0.3
# Passes of a trial that count; the one before them changes the threads. A trial that is so many
# times slower ends at once.
_N_COUNTED, _HOPELESS = 3, 3.0
# Another crew must be faster by so much to take over.
_BETTER = 0.93
# Of what is known of a crew, an observation replaces as much as its time is of this, half at most.
_HORIZON_S, _MOST_REPLACED = 0.3, 0.5
# The typical time of a shape is the average of the first ones, then it follows slowly.
_TYPICAL_RATE, _N_YOUNG = 0.01, 8
_MAX_SHAPES = 512
# How often others' load is looked at, and how far from the last level it must be to be another.
_LOAD_EVERY_S, _OTHER_LEVEL = 0.25, 0.6
_N_LEVELS = 8  # at most, of others that use as many cores as the rule has threads
# Seconds of passes after which a crew that lost is tried again, doubled each time.
_FIRST_WAIT_S, _LAST_WAIT_S = 4.0, 128.0
_UNKNOWN = 2.0  # times slower, a crew that nobody has tried

Load = Callable[[], float]  # cores that other processes use


@dataclass(frozen=True, slots=True)
class Crew:
    """The threads of a pass, and whether they sleep while they wait for each other."""

    threads: int
    sleeps: bool = False


@dataclass(slots=True)
class _Known:
    """What passes of one crew take under one load, over the typical time of their shapes."""

    slowness: float
    tried_at: float
    wait_s: float = _FIRST_WAIT_S


@dataclass(slots=True)
class _Typical:
    """Seconds of a pass of one shape by the rule on an idle machine, as far as can be told."""

    seconds: float
    n: int = 1

    def follow(self, seconds: float) -> None:
        self.n = min(self.n + 1, round(1 / _TYPICAL_RATE))
        self.seconds += (seconds - self.seconds) / (
            self.n if self.n <= _N_YOUNG else 1 / _TYPICAL_RATE
        )


@dataclass(slots=True)
class _Trial:
    crew: Crew
    n_made: int = 0
    found: list[float] = field(default_factory=list)


def crews(most: int, *, can_sleep: bool) -> list[Crew]:
    """Those worth a trial where so many threads are the rule, that rule first."""
    counts = dict.fromkeys((most, most - 1, 3 * most // 4, most // 2, most // 4, 1))
    found = [Crew(n) for n in counts if n >= 1]
    if can_sleep:
        found += [Crew(n, sleeps=True) for n in dict.fromkeys((most, most // 2)) if n > 1]
    return found


class CrewChoice:
    """Follows the machine."""

    def __init__(self, candidates: Sequence[Crew], load: Load = lambda: 0.0) -> None:
        """`candidates`: the rule first."""
        self.rule = self.chosen = candidates[0]
        self.level = 0  # of others' load
        self._per_level = max(1.0, self.rule.threads / _N_LEVELS)  # cores
        self._candidates = tuple(candidates)
        self._known: dict[tuple[Crew, int], _Known] = {(self.rule, 0): _Known(1.0, 0.0)}
        self._typical: dict[Hashable, _Typical] = {}
        # Of the chosen crew at the last looks: a change of load is seen after it has shown.
        self._before = (1.0, 1.0)
        self._trial: _Trial | None = None
        self._read_load = load
        self._load_at = -_LOAD_EVERY_S
        self._now = 0.0  # seconds of passes so far
        self._credit = 0.0

    @property
    def now(self) -> Crew:
        """For the next pass."""
        return self.chosen if self._trial is None else self._trial.crew

    @property
    def trying(self) -> bool:
        return self._trial is not None

    @property
    def slowness(self) -> float:
        """Of the chosen crew, over the rule's on an idle machine."""
        return self._known[self.chosen, self.level].slowness

    @property
    def expected_slowness(self) -> float:
        """Of the crew that makes the next pass."""
        return self.slowness if self._trial is None else self.slowness * self._expected(self.now)

    def refuse(self, crew: Crew) -> None:
        """It may not make this pass: another does, and later it is asked again."""
        if self._trial is not None and self._trial.crew == crew:
            self._end_trial(self._trial)
        if self.chosen == crew:
            self._take(self.rule, self.slowness)

    def observe(self, crew: Crew, shape: Hashable, seconds: float) -> None:
        """A pass of this shape took `seconds` under a crew."""
        if crew not in self._candidates or seconds <= 0:
            return
        ratio = self._ratio(crew, shape, seconds)
        self._now += seconds
        share = _SHARE_BUSY if self._is_busy else _SHARE
        self._credit = min(self._credit + share * seconds, _DEBT_S)
        if self._trial is not None and self._trial.crew == crew:
            self._observe_trial(self._trial, ratio, seconds)
        elif ratio is not None and crew == self.chosen:
            known = self._known[crew, self.level]
            part = min(_MOST_REPLACED, seconds / _HORIZON_S)
            known.slowness += part * (ratio - known.slowness)
            known.tried_at = self._now
        if self._trial is None:
            self._look_around()
            self._choose()
            self._begin_trial(seconds)

    # -- what is known --------------------------------------------------------

    def _look_around(self) -> None:
        """Where others took cores or left some, what was found under that load holds again."""
        if self._now - self._load_at < _LOAD_EVERY_S:
            return
        self._load_at, load = self._now, self._read_load() / self._per_level
        slowness = self.slowness
        if abs(load - self.level) < _OTHER_LEVEL:
            self._before = (self._before[1], slowness)
            return
        self._known[self.chosen, self.level].slowness = self._before[0]
        self.level = max(0, round(load))
        best = min(
            (crew for crew in self._candidates if (crew, self.level) in self._known),
            key=lambda crew: self._known[crew, self.level].slowness,
            default=None,
        )
        if best is None:
            best = self.chosen
        self._take(best, slowness)

    def _take(self, crew: Crew, guess: float) -> None:
        """`guess`: its slowness, if it was never tried under this load."""
        known = self._known.setdefault((crew, self.level), _Known(guess, self._now))
        known.tried_at = self._now
        self.chosen, self._before = crew, (known.slowness, known.slowness)

    @property
    def _is_busy(self) -> bool:
        return self.level > 0 or self.chosen != self.rule

    def _ratio(self, crew: Crew, shape: Hashable, seconds: float) -> float | None:
        """Over what is typical of the shape, which only the chosen crew's passes tell."""
        typical = self._typical.get(shape)
        if crew == self.chosen and self._trial is None:
            usual = seconds / self.slowness
            if typical is not None:
                typical.follow(usual)
            else:
                if len(self._typical) >= _MAX_SHAPES:
                    self._typical.clear()
                self._typical[shape] = _Typical(usual)
        return None if typical is None else seconds / typical.seconds

    def _choose(self) -> None:
        """The fastest of those that were tried lately."""
        fresh = {
            crew: known.slowness
            for crew in self._candidates
            if (known := self._known.get((crew, self.level))) is not None
            and self._now - known.tried_at < known.wait_s
        }
        best = min(fresh, key=lambda crew: fresh[crew], default=self.chosen)
        if best != self.chosen and fresh[best] < _BETTER * self.slowness:
            self._known[best, self.level].wait_s = _FIRST_WAIT_S
            self._take(best, fresh[best])

    # -- trials ---------------------------------------------------------------

    def _begin_trial(self, seconds: float) -> None:
        """Of the crew that may gain most, if its cost can be paid."""
        due = [crew for crew in self._candidates if crew != self.chosen and self._is_due(crew)]
        if not due or not self._typical:
            return
        crew = min(due, key=self._expected)
        cost = max(0.0, self._expected(crew) - 1.0) * seconds * (1 + _N_COUNTED)
        first = self._is_busy and (crew, self.level) not in self._known
        if cost <= self._credit + (_DEBT_S if first else 0.0):
            self._trial = _Trial(crew)

    def _is_due(self, crew: Crew) -> bool:
        known = self._known.get((crew, self.level))
        return known is None or self._now - known.tried_at >= known.wait_s

    def _expected(self, crew: Crew) -> float:
        """Times the chosen crew's."""
        known = self._known.get((crew, self.level))
        return _UNKNOWN if known is None else known.slowness / self.slowness

    def _observe_trial(self, trial: _Trial, ratio: float | None, seconds: float) -> None:
        own = self.slowness
        trial.n_made += 1
        if ratio is None:  # a shape that the chosen crew has not made yet
            if trial.n_made > 2 * (1 + _N_COUNTED):
                self._end_trial(trial)
            return
        self._credit -= max(0.0, seconds * (1.0 - own / ratio))
        hopeless = ratio > _HOPELESS * own
        if trial.n_made > 1 or hopeless:
            trial.found.append(ratio)
        if len(trial.found) >= _N_COUNTED or hopeless:
            self._end_trial(trial)

    def _end_trial(self, trial: _Trial) -> None:
        """What it found replaces what was known; nothing: it is put off as if it had lost."""
        self._trial = None
        before = self._known.get((trial.crew, self.level))
        wait_s = _FIRST_WAIT_S if before is None else min(2 * before.wait_s, _LAST_WAIT_S)
        slowness = _UNKNOWN * self.slowness if before is None else before.slowness
        if trial.found:
            slowness = sum(trial.found) / len(trial.found)
        self._known[trial.crew, self.level] = _Known(slowness, self._now, wait_s)

    # -- what is kept ---------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """What was found, by load and crew."""
        return {
            "crews": [
                [level, crew.threads, crew.sleeps, round(known.slowness, 4)]
                for (crew, level), known in self._known.items()
            ]
        }

    def recall(self, record: Mapping[str, Any]) -> None:
        """What an earlier run found; raises ValueError or LookupError where it is no record."""
        found: dict[tuple[Crew, int], _Known] = {}
        for level, threads, sleeps, slowness in record["crews"]:
            if not 0 < float(slowness) < float("inf"):
                raise ValueError("slowness must be positive")
            crew = Crew(int(threads), bool(sleeps))
            if crew in self._candidates:
                found[crew, int(level)] = _Known(float(slowness), 0.0)
        self._known = {(self.rule, 0): _Known(1.0, 0.0), **found}
