"""The CPU threads that contexts share: how many compute a pass, and how they wait for each other.

Knows llama.cpp's OpenMP, nothing of prices. Threads that spin at barriers are fast on cores of
their own and ruinous where one core is taken: the others burn their time until it comes back.

GNU OpenMP is told how to wait before it is loaded, and never again. But it gives spinning up while
it manages more threads than there are cores (its manual, GOMP_SPINCOUNT). So to let them sleep, a
team that does nothing is kept beside them.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from parlay.llama import cpu
from parlay.llama.library import C


class Threads:
    """What every context of an engine asks before a pass. One thread changes it."""

    def __init__(self, n: int) -> None:
        self.n = n
        self._idle_team: _IdleTeam | None = None

    def use(self, n: int, *, sleeps: bool) -> None:
        """From the next pass on; `sleeps` instead of spinning, where that can be chosen."""
        self.n = n
        if sleeps and self._idle_team is None and can_sleep():
            self._idle_team = _IdleTeam()
        elif not sleeps and self._idle_team is not None:
            self._idle_team.close()
            self._idle_team = None

    @contextmanager
    def meanwhile(self, n: int) -> Iterator[None]:
        """So many for a while, asleep where that can be chosen: it is done beside other work."""
        before, slept = self.n, self._idle_team is not None
        self.use(n, sleeps=True)
        try:
            yield
        finally:
            self.use(before, sleeps=slept)

    def close(self) -> None:
        """End what was started; safe to call twice."""
        self.use(self.n, sleeps=False)


@functools.cache
def can_sleep() -> bool:
    """Whether this build waits by GNU OpenMP, and may have more threads than there are cores."""
    limit = C.optional("omp_get_thread_limit", ctypes.c_int)
    if "OPENMP" not in cpu.features() or _team_of() is None or limit is None:
        return False
    return int(limit()) > (os.cpu_count() or 1)


@functools.cache
def _team_of() -> Any | None:
    """Runs a function on a team of threads. A look-up in libllama searches what it links to."""
    pointer, number = ctypes.c_void_p, ctypes.c_uint
    return C.optional("GOMP_parallel", None, pointer, pointer, number, number)


class _IdleTeam:
    """More threads than cores that sleep, and the thread they belong to: they end with it."""

    def __init__(self) -> None:
        self._ended, ready = threading.Event(), threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(ready,), name="parlay-idle-team", daemon=True
        )
        self._thread.start()
        ready.wait()

    def _run(self, ready: threading.Event) -> None:
        team_of = _team_of()
        nothing = ctypes.cast(ctypes.CDLL(None).sched_yield, ctypes.c_void_p)
        if team_of is not None:
            team_of(nothing, None, (os.cpu_count() or 1) + 1, 0)
        ready.set()
        self._ended.wait()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
