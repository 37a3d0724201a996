"""How many of the cores that this process may use are taken by others.

Knows the system's counters; nothing of models. A hint when to look again, never a price. Time that
a hypervisor gave to another machine counts as others' too.
"""

from __future__ import annotations

import psutil

_LEAST_S = 0.1  # of machine time between looks: the counters move in hundredths


class Neighbours:
    """Counts from one look to the next."""

    def __init__(self) -> None:
        self._own = psutil.Process()
        self._cores = _usable(self._own)
        self._before = self._read()
        self._last = 0.0

    def __call__(self) -> float:
        """Cores that others used since the last look; right after it, what it said."""
        now = self._read()
        busy, idle, own = (new - old for new, old in zip(now, self._before, strict=True))
        if busy + idle >= _LEAST_S * len(self._cores):
            self._before = now
            self._last = max(0.0, busy - own) / (busy + idle) * len(self._cores)
        return self._last

    def _read(self) -> tuple[float, float, float]:
        busy = idle = 0.0
        every = psutil.cpu_times(percpu=True)
        for core in (every[i] for i in self._cores if i < len(every)):
            waits = core.idle + getattr(core, "iowait", 0.0)
            guest = getattr(core, "guest", 0.0) + getattr(core, "guest_nice", 0.0)
            busy, idle = busy + sum(core) - waits - guest, idle + waits
        own = self._own.cpu_times()
        return busy, idle, own.user + own.system


def _usable(process: psutil.Process) -> list[int]:
    """Where a system does not tell, all of them."""
    if hasattr(process, "cpu_affinity"):
        return list(process.cpu_affinity())
    return list(range(psutil.cpu_count() or 1))
