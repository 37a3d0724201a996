"""How many of the cores that this process may use are taken by others.

Knows the system's counters; nothing of models. A hint when to look again, never a price. Time that
a hypervisor gave to another machine counts as others' too.
"""

from __future__ import annotations

import psutil


class Neighbours:
    """Counts from one look to the next."""

    def __init__(self) -> None:
        self._own = psutil.Process()
        self._cores = _usable(self._own)
        self._busy_s, self._idle_s, self._own_s = self._read()

    def __call__(self) -> float:
        """Cores that others used since the last look."""
        before = self._busy_s, self._idle_s, self._own_s
        self._busy_s, self._idle_s, self._own_s = self._read()
        busy, idle, own = (
            now - then
            for now, then in zip((self._busy_s, self._idle_s, self._own_s), before, strict=True)
        )
        every = busy + idle
        return max(0.0, busy - own) / every * len(self._cores) if every > 0 else 0.0

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
