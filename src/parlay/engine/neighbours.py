"""How many of the cores that this process may use others want.

Knows the system's counters; nothing of models. A hint when to look again, never a price. Time that
a hypervisor gave to another machine counts as others' too.
"""

from __future__ import annotations

import os
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import psutil

from parlay.control.crew_choice import OtherLoad

_LEAST_S = 0.1  # between looks: the counters move in hundredths
_TASKS = Path("/proc/self/task")


class _Counters(NamedTuple):
    """Seconds of cores, but for the clock."""

    clock: float
    busy: float
    idle: float
    own: float
    waited: dict[str, float]  # by thread of our own: ready to run, on no core


class Neighbours:
    """Counts from one look to the next."""

    def __init__(self) -> None:
        self._own = psutil.Process()
        self._cores = _usable(self._own)
        self._before = self._read()
        self._last = OtherLoad(0.0, 0.0)

    def __call__(self) -> OtherLoad:
        """Since the last look; right after it, what it said, seen for no time."""
        if monotonic() - self._before.clock < _LEAST_S:  # every chunk of a prompt asks
            return OtherLoad(self._last.cores, 0.0)
        now = self._read()
        seconds = now.clock - self._before.clock
        self._last = OtherLoad(_wanted(self._before, now, len(self._cores)), seconds)
        self._before = now
        return self._last

    def _read(self) -> _Counters:
        busy = idle = 0.0
        every = psutil.cpu_times(percpu=True)
        for core in (every[i] for i in self._cores if i < len(every)):
            waits = core.idle + getattr(core, "iowait", 0.0)
            guest = getattr(core, "guest", 0.0) + getattr(core, "guest_nice", 0.0)
            busy, idle = busy + sum(core) - waits - guest, idle + waits
        own = self._own.cpu_times()
        return _Counters(monotonic(), busy, idle, own.user + own.system, _waited())


def _wanted(before: _Counters, now: _Counters, n_cores: int) -> float:
    """Others had to wait for cores as long as we had: what they used is not all they want.

    Without that, who shares two cores with two threads of ours seems to leave us one.
    """
    busy, idle, own = now.busy - before.busy, now.idle - before.idle, now.own - before.own
    if busy + idle <= 0:
        return 0.0
    used = max(0.0, busy - own) / (busy + idle) * n_cores
    waited = sum(s - before.waited.get(task, s) for task, s in now.waited.items())
    return min(used * (1 + waited / own), n_cores) if own > 0 else used


def _waited() -> dict[str, float]:
    """Linux alone tells; elsewhere nothing is known to have waited."""
    found = {}
    for task in os.listdir(_TASKS) if _TASKS.is_dir() else ():
        try:
            found[task] = int((_TASKS / task / "schedstat").read_text().split()[1]) / 1e9
        except (OSError, LookupError, ValueError):
            continue  # the thread has ended, or this kernel keeps no such counts
    return found


def _usable(process: psutil.Process) -> list[int]:
    """Where a system does not tell, all of them."""
    if hasattr(process, "cpu_affinity"):
        return list(process.cpu_affinity())
    return list(range(psutil.cpu_count() or 1))
