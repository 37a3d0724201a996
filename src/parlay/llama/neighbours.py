"""How many cores the other processes of this machine use.

Knows the system's counters; nothing of models. A hint when to look again, never a price.
"""

from __future__ import annotations

import psutil


class Neighbours:
    """Counts from one look to the next."""

    def __init__(self) -> None:
        self._own = psutil.Process()
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
        return max(0.0, busy - own) / every * (psutil.cpu_count() or 1) if every > 0 else 0.0

    def _read(self) -> tuple[float, float, float]:
        every, own = psutil.cpu_times(), self._own.cpu_times()
        idle = every.idle + getattr(every, "iowait", 0.0)
        guest = getattr(every, "guest", 0.0) + getattr(every, "guest_nice", 0.0)
        return sum(every) - idle - guest, idle, own.user + own.system
