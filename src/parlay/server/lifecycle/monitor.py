"""Watches over a running service: acceptance, fallbacks and memory, once a second.

Decides when an alert is due and when the drafter must go; knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio

from parlay.server.figures.observer import Recent
from parlay.server.lifecycle.service import Service

INTERVAL_S = 1.0
_MIN_DRAFTED = 100  # below, acceptance is noise
_MIN_ROUNDS = 100
_WEIGHT = 0.02  # of one look in the usual acceptance
_KEEP_EVERY = 60  # looks: what was learned outlives a sudden death


class Monitor:
    """Looks at one service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._usual: float | None = None
        self._n_seen = 0
        self._n_looks = 0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            await self.look()

    async def look(self) -> None:
        """One look at everything."""
        self._n_looks += 1
        if not self._service.engine.alive:
            self._service.die()
            return
        if self._n_looks % _KEEP_EVERY == 0:
            self._service.keep_learned()
        counts = self._service.observer.counts
        if counts.n_rounds != self._n_seen:
            self._n_seen = counts.n_rounds
            recent = self._service.observer.recent_sums()
            self._acceptance(recent)
            self._fallbacks(recent)
            if not self._service.guard.cooling:
                self._service.alerts.set("low_acceptance", None)
        self._service.cache.look(self._service.deployment.monitoring.cache_compaction_interval)
        await self._memory()

    def _acceptance(self, recent: Recent) -> None:
        monitoring = self._service.deployment.monitoring
        if recent.n_drafted < _MIN_DRAFTED:
            return
        now = recent.n_accepted / recent.n_drafted
        usual = self._usual if self._usual is not None else now
        dropped = now < usual * (1 - monitoring.acceptance_drop)
        text = f"token acceptance fell to {now:.0%} from {usual:.0%}"
        alarmed = dropped and monitoring.alert_on_acceptance_drop
        self._service.alerts.set("acceptance_drop", text if alarmed else None)
        self._usual = usual + _WEIGHT * (now - usual)

    def _fallbacks(self, recent: Recent) -> None:
        limit = self._service.deployment.runtime.fallback_threshold_pct
        if limit is None or recent.n_rounds < _MIN_ROUNDS:
            return
        share = 100 * recent.fallback_share
        text = f"{share:.0f} % of recent rounds were plain, over {limit:g} %"
        self._service.alerts.set("fallback_share", text if share > limit else None)

    async def _memory(self) -> None:
        service = self._service
        if service.memory.look():
            text = f"{service.memory.used_pct:.0f} % of memory is in use"
            service.alerts.set("memory_pressure", text)
            service.drafter.give_up()
        else:
            service.alerts.set("memory_pressure", None)
            await service.drafter.come_back()
