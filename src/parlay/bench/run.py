"""The run: every prompt, arm and repeat in a mirrored order, each kept on disk before the next.

Knows subjects by their protocol and time by a clock; draws no conclusions.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from parlay.bench.compare import MIN_PAIRS
from parlay.bench.record import Readings, Sample
from parlay.bench.subject import Ask, Reply, Subject, SubjectError, TimedOut
from parlay.bench.suite import Prompt, Suite
from parlay.errors import BadRequest, ParlayError
from parlay.reading.bounds import one_line

# A subject that never answers is not a slow one: stop before a night is lost.
_GIVE_UP_AFTER = 5

Key = tuple[int, str, str]  # repeat, prompt, arm


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How often, in which order, and how long a request may take."""

    n_repeats: int = MIN_PAIRS
    seed: int = 0
    max_tokens: int | None = None  # None: as the suite says
    time_limit_s: float = 300.0
    budget_s: float | None = None  # no new repeat is begun that would end after this

    def __post_init__(self) -> None:
        if self.n_repeats < 1:
            raise BadRequest(f"{self.n_repeats} pairs; give at least 1 ({MIN_PAIRS} for a verdict)")
        if self.time_limit_s <= 0:
            raise BadRequest("the time limit must be above 0")


# -- the order --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Step:
    """One request to run."""

    position: int
    repeat: int
    prompt: str
    arm: str


def schedule(
    prompts: Sequence[str], arms: Sequence[str], n_repeats: int, seed: int
) -> tuple[Step, ...]:
    """Every arm answers every prompt once a repeat, one right after the other.

    Over two repeats a prompt sees A B, then B A: what drifts slowly cancels. Half of the prompts
    begin with A, half with B, so that an odd number of repeats favours nobody.
    """
    rng = random.Random(seed)
    backwards = frozenset(rng.sample(list(prompts), len(prompts) // 2))
    steps: list[Step] = []
    for repeat in range(n_repeats):
        for prompt in rng.sample(list(prompts), len(prompts)):
            mirrored = (prompt in backwards) != (repeat % 2 == 1)
            for arm in reversed(arms) if mirrored else arms:
                steps.append(Step(len(steps), repeat, prompt, arm))
    return tuple(steps)


# -- the samples on disk ----------------------------------------------------------------------


class SampleFile:
    """One JSON line for each finished request, written at once, read to resume. Texts stay here
    and never reach a result."""

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        """Start the file, or go on with one that has the same header."""
        self.path = path
        self.samples: dict[Key, Sample] = {}
        self.texts: dict[Key, str] = {}
        self.n_sittings = 1
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                self._read(header)
            else:
                self._append({"header": header})
        except OSError as error:
            raise BadRequest(f"{path.name}: {error.strerror}; choose another --out") from error

    def add(self, sample: Sample, text: str) -> None:
        """Keep one; it is on the disk when this returns."""
        self._append({"sample": sample.model_dump(exclude_defaults=True), "text": text})
        self._keep(sample, text)

    def drop_partial(self, arms: set[str]) -> None:
        """Forget pairs that an interruption cut in two: their halves lie too far apart."""
        by_pair: dict[tuple[int, str], set[str]] = {}
        for repeat, prompt, arm in self.samples:
            by_pair.setdefault((repeat, prompt), set()).add(arm)
        for key in [key for key in self.samples if not by_pair[key[:2]] >= arms]:
            del self.samples[key], self.texts[key]

    def _keep(self, sample: Sample, text: str) -> None:
        # A pair that was run again replaces the halves of the first attempt.
        key = sample.repeat, sample.prompt, sample.arm
        self.samples[key], self.texts[key] = sample, text

    def _append(self, line: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _read(self, header: dict[str, Any]) -> None:
        data = self.path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):  # an interruption can leave half a line at the end
            with self.path.open("r+b") as file:
                file.truncate(len(whole))
        lines = whole.decode("utf-8", "replace").splitlines()
        if not lines:
            self._append({"header": header})
            return
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                if number == 1 and row["header"] != json.loads(json.dumps(header)):
                    raise BadRequest(
                        f"{self.path.name} belongs to another run;"
                        " use the same options to resume it, or choose another --out"
                    )
                if "sample" in row:
                    self._keep(Sample.model_validate(row["sample"]), str(row["text"]))
                self.n_sittings += "resumed" in row
            except (ValueError, KeyError, TypeError, ValidationError) as error:
                raise BadRequest(
                    f"{self.path.name} line {number} is damaged; remove the file or choose another"
                    " --out"
                ) from error
        self.n_sittings += 1
        self._append({"resumed": len(self.samples)})


def header(suite: Suite, subjects: Mapping[str, Subject], options: RunOptions) -> dict[str, Any]:
    """What two sittings must have in common to be one run."""
    return {
        "suite": suite.sha256,
        "arms": {name: subject.info.model_dump() for name, subject in subjects.items()},
        "repeats": options.n_repeats,
        "seed": options.seed,
        "max_tokens": options.max_tokens,
    }


# -- the runner -------------------------------------------------------------------------------


class Progress(Protocol):
    """Whoever shows how far the run is."""

    def __call__(self, done: int, total: int, left_s: float | None, what: str) -> None:
        """`left_s` is None while nothing is known."""


def silent(done: int, total: int, left_s: float | None, what: str) -> None:
    """Shows nothing."""


@dataclass(slots=True)
class Run:
    """What a run left behind."""

    samples: list[Sample]
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
    warm: bool = False  # everything has run once already
    _failed: Counter[str] = field(default_factory=Counter)
    _began: float = 0.0

    def run(self) -> Run:
        """Everything that is not in the samples file yet."""
        self.file.drop_partial(set(self.subjects))
        names = [prompt.id for prompt in self.suite.prompts]
        steps = schedule(names, list(self.subjects), self.options.n_repeats, self.options.seed)
        missing = [s for s in steps if (s.repeat, s.prompt, s.arm) not in self.file.samples]
        if missing and not self.warm:
            self._warm_up()
        done_before = max((s.at_s + s.wall_s for s in self.file.samples.values()), default=0.0)
        self._began = self.clock() - done_before
        stopped = self._run_all(missing)
        samples = sorted(self.file.samples.values(), key=lambda s: s.position)
        return Run(samples, self.clock() - self._began, self.file.n_sittings, stopped)

    def _warm_up(self) -> None:
        """What runs for the first time is compiled, paged in, allocated."""
        for number, (name, subject) in enumerate(self.subjects.items()):
            self.progress(number, len(self.subjects), None, f"warm-up {name}")
            try:
                subject.warm_up(self._ask(self.suite.prompts[0]))
            except SubjectError as error:
                raise SubjectError(f"{name}: {error.message}") from error

    def _run_all(self, steps: list[Step]) -> bool:
        """Run what is missing; True if the budget ended it."""
        begun, total = self.clock(), len(steps)
        for done, step in enumerate(steps):
            elapsed = self.clock() - begun
            self.progress(
                done, total, elapsed / done * (total - done) if done else None, step.prompt
            )
            # Asked between repeats: one that was begun is finished, or pairs would be uneven.
            if done and self.options.budget_s and step.repeat != steps[done - 1].repeat:
                repeats_done = step.repeat - steps[0].repeat
                if elapsed + elapsed / repeats_done > self.options.budget_s:
                    return True
            self._run_step(step)
        self.progress(total, total, 0.0, "")
        return False

    def _run_step(self, step: Step) -> None:
        at_s = self.clock() - self._began
        prompt = next(prompt for prompt in self.suite.prompts if prompt.id == step.prompt)
        place: dict[str, Any] = {
            "prompt": step.prompt,
            "arm": step.arm,
            "repeat": step.repeat,
            "position": step.position,
            "at_s": round(at_s, 7),
        }
        try:
            reply = self.subjects[step.arm].ask(self._ask(prompt))
        except ParlayError as error:
            failure = Sample(
                **place,
                outcome="timeout" if isinstance(error, TimedOut) else "error",
                error=one_line(error.message),
                wall_s=max(0.0, self.clock() - self._began - at_s),
                readings=self.readings(),
            )
            self.file.add(failure, "")
            if self._failed[step.arm] >= 0:
                self._failed[step.arm] += 1
            if self._failed[step.arm] >= _GIVE_UP_AFTER:
                message = f"{step.arm} has not answered once: {error.message}"
                raise SubjectError(message) from error
        else:
            self._failed[step.arm] = -1  # it has answered once: later failures are samples
            self.file.add(_sample(place, reply, self.readings()), reply.text)

    def _ask(self, prompt: Prompt) -> Ask:
        options = self.options
        n = min(options.max_tokens or prompt.max_tokens, prompt.max_tokens)
        return Ask(prompt, n, self.suite.temperature, options.seed, options.time_limit_s)


def _sample(place: dict[str, Any], reply: Reply, readings: Readings) -> Sample:
    told = reply.server_decode_s
    return Sample(
        **place,
        outcome="ok",
        n_tokens=reply.n_tokens,
        n_first=reply.n_first,
        counted=reply.counted,
        n_prompt=reply.n_prompt,
        first_token_s=round(reply.first_token_s, 7),
        decode_s=round(reply.decode_s, 7),
        wall_s=round(reply.wall_s, 7),
        server_decode_s=None if told is None else round(told, 7),
        finish_reason=one_line(reply.finish_reason, 32) if reply.finish_reason else None,
        text_sha256=reply.text_sha256,
        speculation=reply.speculation,
        readings=readings,
    )
