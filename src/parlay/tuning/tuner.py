"""The tuner: sitting after sitting, heat after heat, within its time; what came of it.

Knows the bench's runner and the race; how sittings are opened and shown is others' business.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

from parlay.bench.record import ArmInfo, Sample
from parlay.bench.run import Runner, RunOptions, SampleFile
from parlay.bench.statistics import log_ratio
from parlay.bench.subject import Ask, Reply, Subject, TimedOut
from parlay.errors import ParlayError
from parlay.tuning.candidates import PLAIN, Sitting
from parlay.tuning.prompts import Workload
from parlay.tuning.race import Race

BLOCK = 3  # prompts of a heat
MAX_LAPS = 5  # over all prompts
_LEAST_TOKENS, _MOST_TOKENS = 16, 128
_PROBE_TOKENS = 12
# Of the time: loading, measuring what passes cost and warming up take the rest.
_FOR_ANSWERS = 0.6
_LIMIT_S = 300.0

Open = Callable[[Sitting], AbstractContextManager[dict[str, Subject]]]
Show = Callable[[float, str], None]  # share of the time that may be used, and what is done


@dataclass(slots=True)
class Heats:
    """What one sitting left behind."""

    sitting: Sitting
    file: SampleFile
    n: int = 0
    problem: str | None = None
    counted: set[tuple[str, int, str]] = field(default_factory=set)  # pairs that were added

    @property
    def samples(self) -> list[Sample]:
        return list(self.file.samples.values())


@dataclass(frozen=True, slots=True)
class InTime:
    """A subject that is not asked when the time is over, and cut off where it ends."""

    subject: Subject
    left_s: Callable[[], float]

    @property
    def info(self) -> ArmInfo:
        return self.subject.info

    def warm_up(self, ask: Ask) -> None:
        self.subject.warm_up(self._limited(ask))

    def ask(self, ask: Ask) -> Reply:
        return self.subject.ask(self._limited(ask))

    def _limited(self, ask: Ask) -> Ask:
        left = self.left_s()
        if left <= 0:
            raise TimedOut("the time was over")
        return replace(ask, time_limit_s=min(ask.time_limit_s, left))


@dataclass(slots=True)
class Tuner:
    """One race of everything against plain decoding."""

    workload: Workload
    sittings: Sequence[Sitting]
    open: Open
    budget_s: float
    folder: Path  # of the samples
    show: Show = lambda share, what: None
    max_tokens: int | None = None  # None: what the time allows
    clock: Callable[[], float] = time.monotonic
    began: float | None = None  # by the clock, where the time began before
    race: Race = field(init=False)
    heats: list[Heats] = field(init=False)
    n_tokens: int = field(init=False)
    _answer_s: float = 0.0  # of one answer, on average
    _n_answers: int = 0

    def __post_init__(self) -> None:
        ways = [way for sitting in self.sittings for way in sitting.ways]
        free = frozenset(way.label for way in ways if way.drafter is None)
        self.race = Race(tuple(way.label for way in ways), free, MAX_LAPS + 1)
        self.heats = [
            Heats(s, SampleFile(self.folder / f"{i}.jsonl", {"sitting": s.name}))
            for i, s in enumerate(self.sittings)
        ]
        self.n_tokens = self.max_tokens or 0
        self.began = self.clock() if self.began is None else self.began

    @property
    def spent_s(self) -> float:
        assert self.began is not None
        return self.clock() - self.began

    @property
    def left_s(self) -> float:
        return self.budget_s - self.spent_s

    def run(self) -> Race:
        """A look at everybody, then who is left until it is decided or the time is up."""
        todo = self.heats
        while todo:
            before = sum(heats.n for heats in todo)
            for i, heats in enumerate(todo):
                self._sit(heats, self.left_s / (len(todo) - i))
            todo = [heats for heats in self.heats if self._may_go_on(heats)]
            if self.race.decided or sum(heats.n for heats in todo) == before:
                break
        self.show(1.0, "")
        return self.race

    def _may_go_on(self, heats: Heats) -> bool:
        more = heats.n < MAX_LAPS * self._blocks
        return heats.problem is None and more and bool(self._racing(heats))

    def _racing(self, heats: Heats) -> list[str]:
        return [way.label for way in heats.sitting.ways if way.label in self.race.racing]

    @property
    def _blocks(self) -> int:
        return -(-len(self.workload.suite.prompts) // BLOCK)

    # -- a sitting ------------------------------------------------------------

    def _sit(self, heats: Heats, share_s: float) -> None:
        """Heats until the share of the time is used, or nobody here is racing any more."""
        end = self.spent_s + share_s
        if not self._time_for(heats, end, opening=True):
            return
        self._tell(heats)
        try:
            with self.open(heats.sitting) as opened:
                subjects: dict[str, Subject] = {
                    name: InTime(subject, lambda: self.left_s) for name, subject in opened.items()
                }
                self._measure(subjects)
                warm = False
                while self._may_go_on(heats) and self._time_for(heats, end):
                    self._heat(heats, subjects, warm)
                    warm = True
        except ParlayError as error:
            if self.left_s > 0:  # else what was raced before still counts
                heats.problem = error.message
                self.race.stopped.update(way.label for way in heats.sitting.ways)

    def _time_for(self, heats: Heats, end: float, opening: bool = False) -> bool:
        """Whether one more heat ends in time: in the sitting's share, but for its first heat, which
        may take what is left; the first heat of all cannot be foreseen."""
        arms = len(self._racing(heats)) + 1
        n = (BLOCK + opening) * arms
        limit = min(end, self.budget_s) if heats.n else self.budget_s
        return self.spent_s + n * self._answer_s <= limit

    def _measure(self, subjects: dict[str, Subject]) -> None:
        """How fast plain decoding is decides how long the answers of this race are."""
        if self.n_tokens and self._n_answers:
            return
        suite = self.workload.suite
        ask = Ask(suite.prompts[0], _PROBE_TOKENS, suite.temperature, 0, _LIMIT_S)
        reply = subjects[PLAIN].ask(ask)
        token_s = reply.decode_s / max(1, reply.n_tokens - 1)
        n_answers = sum(len(s.ways) + 1 for s in self.sittings) * (len(suite.prompts) + 1)
        affordable = self.left_s * _FOR_ANSWERS / n_answers - reply.first_token_s
        tokens = int(affordable / max(token_s, 1e-6))
        self.n_tokens = self.max_tokens or min(_MOST_TOKENS, max(_LEAST_TOKENS, tokens))
        self._answer_s = reply.first_token_s + self.n_tokens * token_s

    def _heat(self, heats: Heats, subjects: dict[str, Subject], warm: bool) -> None:
        """A few prompts once more, every way that is racing right beside plain decoding."""
        lap, block = divmod(heats.n, self._blocks)
        prompts = self.workload.suite.prompts[block * BLOCK :][:BLOCK]
        racing = {name: subjects[name] for name in (PLAIN, *self._racing(heats))}
        options = RunOptions(lap + 1, max_tokens=self.n_tokens, time_limit_s=_LIMIT_S)
        started = self.clock()
        suite = replace(self.workload.suite, prompts=prompts)
        Runner(suite, racing, options, heats.file, warm=warm).run()
        heats.n += 1
        # The average answer: what a warm-up took counts, for the next sitting has one too.
        n = (len(prompts) + (not warm)) * len(racing)
        self._n_answers += n
        self._answer_s += ((self.clock() - started) / n - self._answer_s) * n / self._n_answers
        self._add_pairs(heats)
        self.race.stop_losers()
        self._tell(heats)

    def _add_pairs(self, heats: Heats) -> None:
        """Pairs that are new since the last heat."""
        for (repeat, prompt, arm), sample in heats.file.samples.items():
            plain = heats.file.samples.get((repeat, prompt, PLAIN))
            if arm == PLAIN or plain is None or (arm, repeat, prompt) in heats.counted:
                continue
            heats.counted.add((arm, repeat, prompt))
            ours, theirs = sample.tokens_per_second("decode"), plain.tokens_per_second("decode")
            if ours and theirs and (found := log_ratio(theirs, ours)) is not None:
                self.race.add(arm, prompt, found)

    def _tell(self, heats: Heats) -> None:
        self.show(min(1.0, self.spent_s / self.budget_s), heats.sitting.name)
