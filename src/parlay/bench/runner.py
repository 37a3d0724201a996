"""The runner: warm-up, then every step of the schedule, each kept on disk before the next.

Knows subjects by their protocol and time by a clock; draws no conclusions.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from parlay.bench.sample import Readings, Sample
from parlay.bench.samplefile import SampleFile
from parlay.bench.schedule import Step, schedule
from parlay.bench.subjects.subject import Ask, Reply, Subject, SubjectError, TimedOut
from parlay.bench.suite import Prompt, Suite
from parlay.errors import BadRequest, ParlayError
from parlay.reading.bounds import one_line

MIN_PAIRS = 5
# A subject that never answers is not a slow one: stop before a night is lost.
_GIVE_UP_AFTER = 5


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How often, in which order, and how long a request may take."""

    n_repeats: int = MIN_PAIRS
    seed: int = 0
    max_tokens: int | None = None  # None: as the suite says
    time_limit_s: float = 300.0
    cool_down_s: float = 0.0
    budget_s: float | None = None  # no new repeat is begun that would end after this

    def __post_init__(self) -> None:
        if self.n_repeats < 1:
            raise BadRequest(f"{self.n_repeats} pairs; give at least 1 ({MIN_PAIRS} for a verdict)")
        if self.time_limit_s <= 0 or self.cool_down_s < 0:
            raise BadRequest("the time limit must be above 0 and the cool-down not below it")


class Progress(Protocol):
    """Whoever shows how far the run is."""

    def __call__(self, done: int, total: int, left_s: float | None, what: str) -> None:
        """`left_s` is None while nothing is known."""


def silent(done: int, total: int, left_s: float | None, what: str) -> None:
    """Shows nothing."""


def header(suite: Suite, subjects: Mapping[str, Subject], options: RunOptions) -> dict[str, Any]:
    """What two sittings must have in common to be one run."""
    return {
        "suite": suite.sha256,
        "arms": {name: subject.info.model_dump() for name, subject in subjects.items()},
        "repeats": options.n_repeats,
        "seed": options.seed,
        "max_tokens": options.max_tokens,
    }


@dataclass(slots=True)
class Run:
    """What a run left behind."""

    samples: list[Sample]
    texts: dict[tuple[int, str, str], str]
    shapes: dict[str, list[int]]  # arm -> draft lengths that the warm-up saw
    duration_s: float
    n_sittings: int
    stopped_early: bool = False


@dataclass(slots=True)
class Runner:
    """One run of several arms over a suite. The first arm is the baseline."""

    suite: Suite
    subjects: Mapping[str, Subject]
    options: RunOptions
    file: SampleFile
    progress: Progress = silent
    readings: Callable[[], Readings] = Readings
    clock: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], None] = time.sleep
    warm: bool = False  # everything has run once already
    _failed: Counter[str] = field(default_factory=Counter)
    _began: float = 0.0

    def run(self) -> Run:
        """Everything that is not in the samples file yet."""
        self.file.drop_partial(set(self.subjects))
        shapes = self._warm_up()
        done_before = max((s.at_s + s.wall_s for s in self.file.samples.values()), default=0.0)
        self._began = self.clock() - done_before
        stopped = self._run_all()
        samples = sorted(self.file.samples.values(), key=lambda s: s.position)
        duration = self.clock() - self._began
        return Run(samples, self.file.texts, shapes, duration, self.file.n_sittings, stopped)

    def _run_all(self) -> bool:
        """Run what is missing; True if the budget ended it."""
        steps = self._missing()
        begun, total = self.clock(), len(steps)
        for done, step in enumerate(steps):
            self.progress(done, total, self._left(done, total, begun), step.prompt)
            if self._over_budget(steps, done, begun):
                return True
            self._cool_down(steps, done)
            self._run_step(step)
        self.progress(total, total, 0.0, "")
        return False

    def _missing(self) -> list[Step]:
        names = [prompt.id for prompt in self.suite.prompts]
        steps = schedule(names, list(self.subjects), self.options.n_repeats, self.options.seed)
        return [s for s in steps if (s.repeat, s.prompt, s.arm) not in self.file.samples]

    def _left(self, done: int, total: int, begun: float) -> float | None:
        return (self.clock() - begun) / done * (total - done) if done else None

    def _over_budget(self, steps: list[Step], done: int, begun: float) -> bool:
        """Asked between repeats: a repeat that was begun is finished, or pairs would be uneven."""
        budget = self.options.budget_s
        if budget is None or done == 0 or steps[done].repeat == steps[done - 1].repeat:
            return False
        elapsed = self.clock() - begun
        repeats_done = steps[done].repeat - steps[0].repeat
        return elapsed + elapsed / repeats_done > budget

    def _cool_down(self, steps: list[Step], done: int) -> None:
        between_pairs = done > 0 and steps[done].prompt != steps[done - 1].prompt
        if between_pairs and self.options.cool_down_s:
            self.sleep(self.options.cool_down_s)

    # -- one step -------------------------------------------------------------

    def _run_step(self, step: Step) -> None:
        at_s = self.clock() - self._began
        try:
            reply = self.subjects[step.arm].ask(self._ask(self._prompt(step.prompt)))
        except ParlayError as error:
            self.file.add(self._failure(step, at_s, error), "")
            self._count_failure(step, error)
        else:
            self._failed[step.arm] = -1  # it has answered once: later failures are samples
            self.file.add(self._sample(step, at_s, reply), reply.text)

    def _ask(self, prompt: Prompt) -> Ask:
        limit = self.options.max_tokens
        n = prompt.max_tokens if limit is None else min(limit, prompt.max_tokens)
        options = self.options
        return Ask(prompt, n, self.suite.temperature, options.seed, options.time_limit_s)

    def _prompt(self, name: str) -> Prompt:
        return next(prompt for prompt in self.suite.prompts if prompt.id == name)

    def _sample(self, step: Step, at_s: float, reply: Reply) -> Sample:
        return Sample(
            **_place(step, at_s),
            outcome="ok",
            n_tokens=reply.n_tokens,
            n_first=reply.n_first,
            counted=reply.counted,
            n_prompt=reply.n_prompt,
            first_token_s=round(reply.first_token_s, 7),
            decode_s=round(reply.decode_s, 7),
            wall_s=round(reply.wall_s, 7),
            server_decode_s=_rounded(reply.server_decode_s),
            finish_reason=one_line(reply.finish_reason, 32) if reply.finish_reason else None,
            text_sha256=reply.text_sha256,
            speculation=reply.speculation,
            readings=self.readings(),
        )

    def _failure(self, step: Step, at_s: float, error: ParlayError) -> Sample:
        return Sample(
            **_place(step, at_s),
            outcome="timeout" if isinstance(error, TimedOut) else "error",
            error=one_line(error.message),
            wall_s=max(0.0, self.clock() - self._began - at_s),
            readings=self.readings(),
        )

    def _count_failure(self, step: Step, error: ParlayError) -> None:
        if self._failed[step.arm] < 0:
            return
        self._failed[step.arm] += 1
        if self._failed[step.arm] >= _GIVE_UP_AFTER:
            raise SubjectError(f"{step.arm} has not answered once: {error.message}")

    # -- warm-up --------------------------------------------------------------

    def _warm_up(self) -> dict[str, list[int]]:
        """Every arm, every shape: what runs for the first time is compiled, paged in, allocated."""
        if self.warm or not self._missing():
            return {}
        shapes: dict[str, list[int]] = {}
        for number, (name, subject) in enumerate(self.subjects.items()):
            self.progress(number, len(self.subjects), None, f"warm-up {name}")
            try:
                shapes[name] = subject.warm_up(self._ask(self.suite.prompts[0]))
            except SubjectError as error:
                raise SubjectError(f"{name}: {error.message}") from error
        return shapes


def _place(step: Step, at_s: float) -> dict[str, Any]:
    return {
        "prompt": step.prompt,
        "arm": step.arm,
        "repeat": step.repeat,
        "position": step.position,
        "at_s": round(at_s, 7),
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 7)
