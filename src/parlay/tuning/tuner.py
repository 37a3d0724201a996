"""The tuner: sitting after sitting, heat after heat, within its time; what came of it.

Knows the bench's runner and the race; how sittings are opened and shown is others' business.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from parlay.bench.runner import Run, Runner, RunOptions
from parlay.bench.sample import Sample
from parlay.bench.samplefile import SampleFile
from parlay.bench.statistics import log_ratio
from parlay.bench.subjects.subject import (
    ArmInfo,
    Ask,
    Reply,
    ScoredToken,
    Subject,
    TimedOut,
)
from parlay.bench.suite import Prompt
from parlay.errors import ParlayError
from parlay.tuning.race import TuningRace
from parlay.tuning.race_prompts import Workload
from parlay.tuning.sitting import PLAIN, Sitting

BLOCK = 3  # prompts of a heat
MAX_LAPS = 5  # over all prompts
_LEAST_TOKENS, _MOST_TOKENS = 16, 128
_PROBE_TOKENS = 12
# Of the time: loading, measuring what passes cost and warming up take the rest.
_FOR_ANSWERS = 0.6
_LIMIT_S = 300.0

Open = Callable[[Sitting], AbstractContextManager[dict[str, Subject]]]


class TuningProgress(Protocol):
    """Whoever shows how far it is."""

    def __call__(self, share: float, what: str) -> None:
        """`share` of the time that may be used."""


def silent(share: float, what: str) -> None:
    """Shows nothing."""


@dataclass(slots=True)
class TuningRecord:
    """What one sitting left behind."""

    sitting: Sitting
    file: SampleFile
    infos: dict[str, ArmInfo] = field(default_factory=dict)
    n_heats: int = 0
    shapes: dict[str, list[int]] = field(default_factory=dict)
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

    def warm_up(self, ask: Ask) -> list[int]:
        return self.subject.warm_up(self._limited(ask))

    def ask(self, ask: Ask) -> Reply:
        return self.subject.ask(self._limited(ask))

    def score(self, ask: Ask) -> Sequence[ScoredToken]:
        return self.subject.score(ask)

    def close(self) -> None:
        self.subject.close()

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
    progress: TuningProgress = silent
    max_tokens: int | None = None  # None: what the time allows
    clock: Callable[[], float] = time.monotonic
    began: float | None = None  # by the clock, where the time began before
    race: TuningRace = field(init=False)
    records: list[TuningRecord] = field(init=False)
    n_tokens: int = field(init=False)
    _answer_s: float = 0.0  # of one answer, on average
    _n_answers: int = 0

    def __post_init__(self) -> None:
        ways = [way for sitting in self.sittings for way in sitting.ways]
        free = frozenset(way.label for way in ways if way.free)
        n_looks = MAX_LAPS + 1
        self.race = TuningRace(tuple(way.label for way in ways), free, n_looks)
        self.records = [
            TuningRecord(s, SampleFile(self.folder / f"{i}.jsonl", {"sitting": s.name}))
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

    def run(self) -> TuningRace:
        """A look at everybody, then who is left until it is decided or the time is up."""
        for i, record in enumerate(self.records):
            self._sit(record, self.left_s / (len(self.records) - i))
        while not self.race.decided:
            open_ones = [r for r in self.records if self._may_go_on(r)]
            before = sum(r.n_heats for r in open_ones)
            for i, record in enumerate(open_ones):
                self._sit(record, self.left_s / (len(open_ones) - i))
            if sum(r.n_heats for r in open_ones) == before:
                break
        self.progress(1.0, "")
        return self.race

    def _may_go_on(self, record: TuningRecord) -> bool:
        more = record.n_heats < MAX_LAPS * self._blocks
        return record.problem is None and more and bool(self._racing(record))

    def _racing(self, record: TuningRecord) -> list[str]:
        return [way.label for way in record.sitting.ways if way.label in self.race.racing]

    @property
    def _blocks(self) -> int:
        return -(-len(self.workload.suite.prompts) // BLOCK)

    # -- a sitting ------------------------------------------------------------

    def _sit(self, record: TuningRecord, share_s: float) -> None:
        """Heats until the share of the time is used, or nobody here is racing any more."""
        end = self.spent_s + share_s
        if not self._time_for(record, end, opening=True):
            return
        self._tell(record)
        try:
            with self.open(record.sitting) as opened:
                subjects: dict[str, Subject] = {
                    name: InTime(subject, lambda: self.left_s) for name, subject in opened.items()
                }
                record.infos = {name: subject.info for name, subject in subjects.items()}
                self._measure(subjects)
                warm = False
                while self._may_go_on(record) and self._time_for(record, end):
                    self._heat(record, subjects, warm)
                    warm = True
        except ParlayError as error:
            if self.left_s <= 0:  # what was raced before still counts
                return
            record.problem = error.message
            self.race.stopped.update(way.label for way in record.sitting.ways)

    def _time_for(self, record: TuningRecord, end: float, opening: bool = False) -> bool:
        """Whether one more heat ends in time: in the sitting's share, but for its first heat, which
        may take what is left; the first heat of all cannot be foreseen."""
        n = BLOCK * (len(self._racing(record)) + 1)
        n += len(self._racing(record)) + 1 if opening else 0
        limit = min(end, self.budget_s) if record.n_heats else self.budget_s
        return self.spent_s + n * self._answer_s <= limit

    def _measure(self, subjects: dict[str, Subject]) -> None:
        """How fast plain decoding is decides how long the answers of this race are."""
        if self.n_tokens and self._n_answers:
            return
        prompt = self.workload.suite.prompts[0]
        reply = subjects[PLAIN].ask(self._ask(prompt, _PROBE_TOKENS))
        token_s = reply.decode_s / max(1, reply.n_tokens - 1)
        n_answers = sum(len(s.ways) + 1 for s in self.sittings) * (
            len(self.workload.suite.prompts) + 1
        )
        affordable = self.left_s * _FOR_ANSWERS / n_answers - reply.first_token_s
        tokens = int(affordable / max(token_s, 1e-6))
        self.n_tokens = self.max_tokens or min(_MOST_TOKENS, max(_LEAST_TOKENS, tokens))
        self._answer_s = reply.first_token_s + self.n_tokens * token_s

    def _ask(self, prompt: Prompt, n_tokens: int) -> Ask:
        return Ask(prompt, n_tokens, self.workload.suite.temperature, 0, _LIMIT_S)

    # -- a heat ---------------------------------------------------------------

    def _heat(self, record: TuningRecord, subjects: dict[str, Subject], warm: bool) -> None:
        """A few prompts once more, every way that is racing right beside plain decoding."""
        lap, block = divmod(record.n_heats, self._blocks)
        prompts = self.workload.suite.prompts[block * BLOCK :][:BLOCK]
        racing = {name: subjects[name] for name in (PLAIN, *self._racing(record))}
        options = RunOptions(lap + 1, max_tokens=self.n_tokens, time_limit_s=_LIMIT_S)
        started = self.clock()
        runner = Runner(
            replace(self.workload.suite, prompts=prompts), racing, options, record.file, warm=warm
        )
        run = runner.run()
        record.shapes.update(run.shapes)
        record.n_heats += 1
        self._count(run, len(prompts) * len(racing), self.clock() - started)
        self._add_pairs(record)
        self.race.stop_losers()
        self._tell(record)

    def _count(self, run: Run, n: int, seconds: float) -> None:
        """The average answer: what a warm-up took counts, for the next sitting has one too."""
        n += len(run.shapes)
        self._n_answers += n
        self._answer_s += (seconds / n - self._answer_s) * n / self._n_answers

    def _add_pairs(self, record: TuningRecord) -> None:
        """Pairs that are new since the last heat."""
        by_place: dict[tuple[int, str], dict[str, Sample]] = {}
        for (repeat, prompt, arm), sample in record.file.samples.items():
            by_place.setdefault((repeat, prompt), {})[arm] = sample
        for (repeat, prompt), arms in by_place.items():
            plain = arms[PLAIN].tokens_per_second("decode") if PLAIN in arms else None
            for name, sample in arms.items():
                speed = sample.tokens_per_second("decode")
                if name == PLAIN or (name, repeat, prompt) in record.counted:
                    continue
                record.counted.add((name, repeat, prompt))
                found = None if plain is None or speed is None else log_ratio(plain, speed)
                if found is not None:
                    self.race.add(name, prompt, found)

    def _tell(self, record: TuningRecord) -> None:
        self.progress(min(1.0, self.spent_s / self.budget_s), record.sitting.name)


def identical(samples: Sequence[Sample], way: str) -> tuple[int, int]:
    """Answers of a way that are plain decoding's to the letter, and how many were compared."""
    plain = {(s.repeat, s.prompt): s.text_sha256 for s in samples if s.arm == PLAIN}
    found: Counter[bool] = Counter(
        plain[s.repeat, s.prompt] == s.text_sha256
        for s in samples
        if s.arm == way and s.text_sha256 and plain.get((s.repeat, s.prompt))
    )
    return found[True], found.total()
