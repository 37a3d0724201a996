"""A quick A/B from the page: the bench's runner over the models that are loaded, one at a time.

Knows the service and the bench; no HTTP. The runner works in a thread, its requests go the way of
all requests: through the queue, in slots, beside everybody else's.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from parlay.bench import machine as machine_facts
from parlay.bench.lineup import quick_suite
from parlay.bench.machine import Sensors
from parlay.bench.record import Machine, ModelInfo, Record
from parlay.bench.report import report
from parlay.bench.result import Setting, assemble, model_info
from parlay.bench.run import Runner, RunOptions, SampleFile, header
from parlay.bench.subject import Subject
from parlay.bench.suite import load_suite
from parlay.control.prices.breakeven import RoundCosts
from parlay.errors import ParlayError
from parlay.front.errors import Failure
from parlay.server.figures.economics import costs_of
from parlay.server.figures.served_arm import ServedArm, on_worker
from parlay.server.lifecycle.service import Service
from parlay.timing import window_passes as passes

log = logging.getLogger("parlay.server")
State = Literal["idle", "running", "done", "failed", "cancelled"]
BUDGET_S = 120.0  # no repeat is begun that would end later
_TIME_LIMIT_S = 60.0  # of one answer
_ROWS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17)
_COSTS_S = 2.0  # so long nobody else is answered
_WORKER_S = 30.0
_UNKNOWN = 1e6  # an interval this wide is none
REPORTS = "/live/bench/report/"
RUNNING = Failure(409, "a quick A/B is running; wait for it or cancel it", code="bench_running")


class BenchOptions(BaseModel):
    """POST /live/bench"""

    model_config = ConfigDict(extra="forbid")

    pairs: int = Field(2, ge=1, le=5, description="Repeats of each prompt.")
    max_tokens: int = Field(32, ge=8, le=64)


class _Cancelled(Exception):
    """Somebody wants no more of it."""


@dataclass(frozen=True, slots=True)
class AbProgress:
    """How far it is."""

    state: State = "idle"
    done: int = 0
    total: int = 0
    left_s: float | None = None
    what: str = ""
    error: str | None = None
    result: dict[str, Any] | None = None

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


class QuickBench:
    """At most one A/B at a time, and the record of the last one."""

    def __init__(self, service: Service, tell: Callable[[dict[str, Any]], None]) -> None:
        """`tell`: hears of every change, on the event loop."""
        self._service = service
        self._tell = tell
        self.progress = AbProgress()
        self.costs: RoundCosts | None = None  # measured along the way, where nobody else has
        self._cancel = threading.Event()
        self._task: asyncio.Task[None] | None = None
        self._record: Record | None = None
        self._report_name = ""
        self._arms: tuple[ServedArm, ...] = ()

    def start(self, options: BenchOptions) -> None:
        if self._task is not None and not self._task.done():
            raise RUNNING
        if self._service.draining:
            raise Failure(503, "the server is shutting down", "server_error", "shutting_down")
        self._cancel.clear()
        self.set(AbProgress("running", what="preparing"))
        self._task = asyncio.get_running_loop().create_task(self._run(options))

    def cancel(self) -> None:
        """Within one round it is over; nothing happens where none runs."""
        self._cancel.set()
        for arm in self._arms:
            arm.stop()

    def report(self, name: str) -> str | None:
        """The page of the last result. Its name is known only to those who saw the result."""
        known = secrets.compare_digest(name.encode(), self._report_name.encode())
        if self._record is None or not known:
            return None
        return report(self._record)

    # -- one run --------------------------------------------------------------

    async def _run(self, options: BenchOptions) -> None:
        loop = asyncio.get_running_loop()
        n_before = self._service.recent.n_answered
        arms = tuple(ServedArm(self._service, loop, on) for on in (False, True))
        self._arms = arms
        try:
            record = await asyncio.to_thread(self._measure, arms, options, loop)
            n_own = sum(arm.n_asked for arm in arms)
            self._keep(record, max(0, self._service.recent.n_answered - n_before - n_own))
        except _Cancelled:
            self.set(AbProgress("cancelled"))
        except ParlayError as error:  # an answer that was cancelled is one of them
            failed = AbProgress("failed", error=error.message)
            self.set(AbProgress("cancelled") if self.cancelled else failed)
        except Exception:  # the server must not fall over a benchmark
            log.exception("the quick A/B failed")
            self.set(AbProgress("failed", error="internal error; the server's log has the details"))

    def _measure(
        self, arms: Sequence[ServedArm], options: BenchOptions, loop: asyncio.AbstractEventLoop
    ) -> Record:
        """In a thread of its own: everything here waits."""
        suite = quick_suite(load_suite("core-12"))
        run_options = RunOptions(
            n_repeats=options.pairs,
            max_tokens=options.max_tokens,
            time_limit_s=_TIME_LIMIT_S,
            budget_s=BUDGET_S,
        )
        machine = _machine()
        self.costs = costs_of(self._service) or self._time_passes()
        subjects: dict[str, Subject] = {arm.info.name: arm for arm in arms}
        progress = _Teller(self, loop)
        with tempfile.TemporaryDirectory(prefix="parlay-quick-") as folder:
            path = Path(folder) / "samples.jsonl"
            file = SampleFile(path, header(suite, subjects, run_options))
            runner = Runner(suite, subjects, run_options, file, progress, Sensors().read)
            run = runner.run()
        progress.check()  # an answer that was cancelled is no sample
        setting = Setting(
            suite=suite,
            options=run_options,
            arms={name: subject.info for name, subject in subjects.items()},
            machine=machine,
            target=model_info(self._service.engine.settings.target),
            drafter=self._drafter(),
            quick=True,
        )
        return assemble(setting, run)

    def _drafter(self) -> ModelInfo | None:
        drafter = self._service.drafter
        loaded = drafter.paths if drafter.state == "ready" else ()
        return model_info(loaded[0]) if loaded else None

    def _time_passes(self) -> RoundCosts | None:
        """Where the controller prices nothing: T(b), if nobody is being answered just now."""
        engine = self._service.engine

        def measure() -> RoundCosts | None:
            if engine.active:
                return None
            found = passes.time_passes(engine.target, _ROWS, 2, _COSTS_S)
            engine.slots.all[0].tokens = []  # what it held has been overwritten
            return RoundCosts(found)

        return on_worker(engine, measure, _WORKER_S)

    # -- what is told ---------------------------------------------------------

    @property
    def cancelled(self) -> bool:
        return self._cancel.is_set() or self._service.draining

    def set(self, progress: AbProgress) -> None:
        self.progress = progress
        self._tell(progress.as_dict())

    def _keep(self, record: Record, n_others: int) -> None:
        self._record = record
        self._report_name = secrets.token_hex(16)
        result = {**_result(record), "others": n_others, "report": f"{REPORTS}{self._report_name}"}
        self.set(AbProgress("done", result=result))


class _Teller:
    """Tells how far it is, and ends the run where it is no longer wanted."""

    def __init__(self, bench: QuickBench, loop: asyncio.AbstractEventLoop) -> None:
        self._bench = bench
        self._loop = loop

    def __call__(self, done: int, total: int, left_s: float | None, what: str) -> None:
        self.check()
        left = None if left_s is None else round(left_s, 1)
        now = AbProgress("running", done, total, left, what)
        self._loop.call_soon_threadsafe(self._bench.set, now)

    def check(self) -> None:
        if self._bench.cancelled:
            raise _Cancelled


@cache
def _machine() -> Machine:
    """Once: it measures the memory for a second."""
    return machine_facts.describe()


def _result(record: Record) -> dict[str, Any]:
    """What the page shows of a record."""
    found = record.comparisons[0]
    speedup = found.speedup
    known = speedup is not None and speedup.high / speedup.low < _UNKNOWN
    return {
        "verdict": found.verdict,
        "ratio": None if speedup is None else round(speedup.ratio, 4),
        "low": round(speedup.low, 4) if speedup is not None and known else None,
        "high": round(speedup.high, 4) if speedup is not None and known else None,
        "scope": None if speedup is None else speedup.scope,
        "n_pairs": 0 if speedup is None else speedup.n_pairs,
        "plain_tokens_per_s": found.baseline_tokens_per_second,
        "tokens_per_s": found.candidate_tokens_per_second,
        "identical": found.identity.n_identical,
        "compared": found.identity.n_compared,
        "failures": len(found.failures),
    }
