"""What is behind the live routes, for one service: snapshots, viewers, prices, the quick A/B.

Knows the service and frames; no HTTP.
"""

from __future__ import annotations

from typing import Any

from parlay.front import streaming as sse
from parlay.server.figures.economics import acceptance_of, costs_of, economics
from parlay.server.figures.quick_ab import QuickBench
from parlay.server.figures.snapshot import TICK_S, LiveSnapshots
from parlay.server.lifecycle.service import Service
from parlay.web.viewers import Viewer, Viewers


class LiveFigures:
    """One server being watched."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._live = LiveSnapshots(service)
        self._viewers = Viewers(self._frame, TICK_S)
        self._snapshot: dict[str, Any] | None = None
        self.bench = QuickBench(service, self._tell_bench)

    async def now(self) -> dict[str, Any]:
        """The latest snapshot while others watch, else one made for the asking."""
        if self._snapshot is None or not len(self._viewers):
            await self._live.prepare()
            self._snapshot = self._live.snapshot()
        return self._snapshot

    async def join(self) -> Viewer:
        return self._viewers.join(
            ("history", sse.event("history", self._live.history())),
            ("bench", sse.event("bench", self.bench.progress.as_dict())),
        )

    def costs(self) -> dict[str, Any]:
        """What passes cost, by the controller or by the last A/B, and the break-even."""
        costs = costs_of(self._service) or self.bench.costs
        proposers = self._service.engine.drafts.named
        return economics(costs, acceptance_of(self._service), proposers)

    def _tell_bench(self, progress: dict[str, Any]) -> None:
        self._viewers.tell("bench", sse.event("bench", progress))

    def leave(self, viewer: Viewer) -> None:
        self._viewers.leave(viewer)

    async def _frame(self, n_viewers: int) -> bytes | None:
        await self._live.prepare()
        if self._service.draining:
            return None  # or the streams would hold the server's end up
        self._snapshot = self._live.snapshot(n_viewers)
        return sse.event("snapshot", self._snapshot)
