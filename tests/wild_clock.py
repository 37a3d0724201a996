"""A clock that cannot be believed, for finding tests that hang on measured time.

    python -m pytest -p tests.wild_clock tests/engine

Every span between two looks at `time.perf_counter` is told up to three times too long or too short,
and passes of one shape are all up to four times dearer than they are: prices, classes, crews and
what the controller chooses become another machine's, and another one's with each seed. WILD_SEED=n
takes one again. A test that fails here asserts what another machine may not give. Knows no test.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

_LARGEST, _DEAREST = 3.0, 4.0
SEED = int(os.environ.setdefault("WILD_SEED", str(random.randrange(10**6))))  # workers take it over


class WildClock:
    """Goes forward, at a pace that changes with every look."""

    def __init__(self) -> None:
        self._true = time.perf_counter
        self._random = random.Random(SEED)
        self._lock = threading.Lock()
        self._seen = self._told = self._true()

    def __call__(self) -> float:
        with self._lock:
            now = self._true()
            self._told += (now - self._seen) * _LARGEST ** self._random.uniform(-1.0, 1.0)
            self._seen = now
            return self._told

    def passed(self, seconds: float) -> None:
        """So much more: other threads look at this clock, and it may not go back."""
        with self._lock:
            self._told += seconds


clock = WildClock()
time.perf_counter = clock  # before anything of the package takes it by name


def pytest_configure() -> None:
    _wild_shapes()


def pytest_report_header() -> str:
    return f"wild clock: WILD_SEED={SEED}"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        report.sections.append(("wild clock", f"WILD_SEED={SEED}"))


def _wild_shapes() -> None:
    """Passes of one shape are all that much dearer or cheaper than those of another."""
    from parlay.llama.context import Context

    decode_rows = Context.decode_rows

    def wild(self: Context, spans: Sequence[Any]) -> Any:
        started = clock()
        busy = self.busy_s
        try:
            return decode_rows(self, spans)
        finally:
            shape = random.Random(f"{SEED} {[len(span.tokens) for span in spans]}")
            more = shape.uniform(0.0, _DEAREST - 1.0)
            clock.passed(more * (clock() - started))
            self.busy_s += more * (self.busy_s - busy)

    Context.decode_rows = wild  # type: ignore[method-assign]
