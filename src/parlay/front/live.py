"""The live figures: one snapshot of everything a watcher wants to see, its course so far, and the
last requests.

Knows a backend by what it tells, no HTTP. The page and `parlay ps` show the same snapshot; its
fields are a public interface: docs/reference/page.md.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, Protocol

from parlay.front import streaming as sse
from parlay.front.errors import Failure
from parlay.front.viewers import Viewer, Viewers

TICK_S = 1.0
HISTORY = 300  # ticks
MAX_REQUESTS = 100
MAX_GROUPS = 33  # of which courses are kept; backends tell no more
_COLUMNS = (
    "time", "request_id", "endpoint", "policy", "status", "finish_reason", "prompt_tokens",
    "generated", "tokens_per_second", "drafted", "token_acceptance", "acceptance_length",
    "speedup", "ttft_ms", "e2e_ms", "model",
)  # fmt: skip
_EMPTY: dict[str, Any] = {
    "mode": None,
    "exact_class": None,
    "exact_cost_percent": None,
    "proposers": [],
    "drafter": "none",
    "baseline_ms": None,
    "slots": [],
    "context_size": 0,
    "waiting": 0,
    "memory": {"place": "ram", "planned_bytes": None, "used_bytes": 0, "used_pct": 0.0,
               "limit_pct": 100.0},
    "remembered_tokens": None,
    "groups": [],
}  # fmt: skip


class Telling(Protocol):
    """A backend as far as it is watched."""

    async def live(self) -> dict[str, Any]:
        """What it tells of this moment; raises where there is no engine."""

    @property
    def n_waiting(self) -> int:
        """Answers that wait for the engine outside of it."""


class LiveFigures:
    """One server being watched."""

    def __init__(
        self,
        backend: Callable[[], Telling],
        about: Callable[[], dict[str, Any]],
        over: Callable[[], bool],
    ) -> None:
        """`about`: what does not come from the backend; `over`: nobody is served any more."""
        self._backend, self._about, self._over = backend, about, over
        self._viewers = Viewers(self._frame, TICK_S)
        self._snapshot: dict[str, Any] | None = None
        self._course: OrderedDict[tuple[str, str], deque[dict[str, Any]]] = OrderedDict()
        self._requests: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self.n_answered = 0

    def take(self, record: dict[str, Any]) -> None:
        """A request is over; its record is the log's, without texts."""
        self.n_answered += 1
        self._requests[record["request_id"]] = record
        while len(self._requests) > MAX_REQUESTS:
            self._requests.popitem(last=False)

    def requests(self) -> list[dict[str, Any]]:
        """The last ones, the latest first."""
        return [
            {
                **{name: record.get(name) for name in _COLUMNS},
                "traced": "mode" in record,  # by an engine of ours, which keeps its rounds
            }
            for record in reversed(self._requests.values())
        ]

    def request(self, answer_id: str) -> dict[str, Any] | None:
        return self._requests.get(answer_id)

    async def now(self) -> dict[str, Any]:
        """The latest snapshot while others watch, else one made for the asking."""
        if self._snapshot is None or not len(self._viewers):
            self._snapshot = await self._look(0)
        return self._snapshot

    async def join(self) -> Viewer:
        course = [
            {"route": route, "model": model, "points": list(points)}
            for (route, model), points in self._course.items()
        ]
        return self._viewers.join(("history", sse.event("history", {"groups": course})))

    def leave(self, viewer: Viewer) -> None:
        self._viewers.leave(viewer)

    async def _frame(self, n_viewers: int) -> bytes | None:
        if self._over():
            return None  # or the streams would hold the server's end up
        self._snapshot = await self._look(n_viewers)
        return sse.event("snapshot", self._snapshot)

    async def _look(self, n_viewers: int) -> dict[str, Any]:
        backend = self._backend()
        try:
            told = await backend.live()
        except Failure:  # it is being started: there is nothing to see of it
            told = _EMPTY
        about = self._about()
        for group in told["groups"]:
            points = self._course.setdefault(
                (group["route"], group["model"]), deque(maxlen=HISTORY)
            )
            points.append({"time": round(time.time(), 1), **group["now"]})
        while len(self._course) > MAX_GROUPS:
            self._course.popitem(last=False)
        waiting = told["waiting"] + backend.n_waiting
        return {
            "time": round(time.time(), 3),
            "tick_s": TICK_S,
            "viewers": n_viewers,
            **{name: value for name, value in told.items() if name != "waiting"},
            **about,
            "queue": {"waiting": waiting, "size": about["queue"]},
            "answered": self.n_answered,
        }
