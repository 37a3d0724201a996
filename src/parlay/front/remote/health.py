"""Whether one server is asked: out after failures, back after a check, slower each time.

Pure: told about checks and requests, and the time; asks nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["unknown", "up", "out"]
_MAX_DOUBLINGS = 32


@dataclass(frozen=True, slots=True)
class HealthLimits:
    """When a server goes, and for how long."""

    eject_after: int = 3  # failed requests in a row
    eject_s: float = 1.0  # the first time; twice as long each time after
    max_eject_s: float = 60.0


class Health:
    """One server's standing."""

    def __init__(self, limits: HealthLimits) -> None:
        self._limits = limits
        self.state: State = "unknown"
        self.reason: str | None = None
        self.check_passes = False  # the last check; a server may pass it and fail every request
        self.n_ejections = 0
        self._n_failures = 0
        self._doublings = 0
        self._until = 0.0
        self._since = 0.0

    @property
    def takes(self) -> bool:
        """Whether requests go there."""
        return self.state == "up"

    @property
    def last_resort(self) -> bool:
        """Out for failed requests alone: better than nobody."""
        return self.state == "out" and self.check_passes

    def due(self, now: float) -> bool:
        """Whether a check could change anything."""
        return self.state != "out" or now >= self._until

    def checked(self, now: float, problem: str | None) -> None:
        """The result of a health check."""
        self.check_passes = problem is None
        if problem is not None:
            if self.state != "out" or now >= self._until:
                self._eject(now, problem)
        elif self.state == "unknown":
            self._return(now, n_failures=0)
        elif self.state == "out" and now >= self._until:
            # On probation: one more failure and it is out again, for longer.
            self._return(now, n_failures=self._limits.eject_after - 1)

    def answered(self, now: float) -> None:
        """A request came to a good end there."""
        self._n_failures = 0
        if now - self._since >= self._limits.max_eject_s:
            self._doublings = 0  # it has been well for long enough to be forgiven

    def failed(self, now: float, reason: str, *, gone: bool = False) -> None:
        """A request failed there. `gone`: nobody listens, so the next would fail too."""
        self._n_failures += 1
        if self.state != "out" and (gone or self._n_failures >= self._limits.eject_after):
            self._eject(now, reason)

    def _eject(self, now: float, reason: str) -> None:
        limits = self._limits
        lasts = min(limits.max_eject_s, limits.eject_s * 2.0**self._doublings)
        self.n_ejections += self.state != "out"
        self.state, self.reason = "out", reason
        self._until = now + lasts
        self._doublings = min(self._doublings + 1, _MAX_DOUBLINGS)

    def _return(self, now: float, n_failures: int) -> None:
        self.state, self.reason = "up", None
        self._n_failures = n_failures
        self._since = now
