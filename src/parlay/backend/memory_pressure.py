"""How much memory is left, and whether that is a reason to give something up.

Knows the machine's figures only; what to give up is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable

import psutil

# Pressure ends only well below where it began, or a drafter would come and go all the time.
_HYSTERESIS_PCT = 5.0


def used_pct() -> float:
    """Share of the machine's memory in use, in percent."""
    return float(psutil.virtual_memory().percent)


class MemoryPressure:
    """Pressure with hysteresis."""

    def __init__(self, limit_pct: float, read: Callable[[], float] = used_pct) -> None:
        self.limit_pct = limit_pct
        self.pressed = False
        self.used_pct = 0.0
        self._read = read

    def look(self) -> bool:
        """Read the figures; whether there is pressure now."""
        self.used_pct = self._read()
        edge = self.limit_pct - (_HYSTERESIS_PCT if self.pressed else 0.0)
        self.pressed = self.used_pct >= edge
        return self.pressed


_OWN = psutil.Process()


def process_bytes() -> int:
    """Resident memory of this process."""
    return int(_OWN.memory_info().rss)
