"""Looks at an engine once a second: acceptance, fallbacks, memory, and whether it is alive.

Decides when an alert is due and when the drafter must go; knows nothing of requests.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from parlay.backend.cache_care import CacheCare
from parlay.backend.drafter_care import DrafterCare
from parlay.backend.memory_pressure import MemoryPressure
from parlay.backend.observer import Observer, Recent
from parlay.control.guard import Guarded
from parlay.deployment import Deployment
from parlay.engine.engine import Engine

INTERVAL_S = 1.0
_MIN_DRAFTED = 100  # below, acceptance is noise
_MIN_ROUNDS = 100
_WEIGHT = 0.02  # of one look in the usual acceptance
_KEEP_EVERY = 60  # looks: what was learned outlives a sudden death
_DIED = 70  # the exit status where the engine's thread is gone: the front begins another process
Trouble = Callable[[str, str | None], None]


class Monitor:
    """Looks at one engine and those who care for it."""

    def __init__(
        self,
        engine: Engine,
        observer: Observer,
        drafter: DrafterCare,
        cache: CacheCare,
        memory: MemoryPressure,
        trouble: Trouble,
        keep_learned: Callable[[], None],
    ) -> None:
        self._engine, self._observer, self._drafter = engine, observer, drafter
        self._cache, self._memory = cache, memory
        self._trouble, self._keep_learned = trouble, keep_learned
        self._usual: float | None = None
        self._n_seen = self._n_looks = 0

    def look(self, deployment: Deployment, guard: Guarded) -> None:
        """One look at everything."""
        self._n_looks += 1
        if not self._engine.alive:
            os._exit(_DIED)
        if self._n_looks % _KEEP_EVERY == 0:
            self._keep_learned()
        counts = self._observer.counts
        if counts.n_rounds != self._n_seen:
            self._n_seen = counts.n_rounds
            recent = self._observer.recent_sums()
            self._acceptance(recent, deployment)
            self._fallbacks(recent, deployment)
            if not guard.cooling:
                self._trouble("low_acceptance", None)
        self._cache.look(deployment.monitoring.cache_compaction_interval)
        self._look_at_memory()

    def _acceptance(self, recent: Recent, deployment: Deployment) -> None:
        monitoring = deployment.monitoring
        if recent.n_drafted < _MIN_DRAFTED:
            return
        now = recent.n_accepted / recent.n_drafted
        usual = self._usual if self._usual is not None else now
        dropped = now < usual * (1 - monitoring.acceptance_drop)
        text = f"token acceptance fell to {now:.0%} from {usual:.0%}"
        alarmed = dropped and monitoring.alert_on_acceptance_drop
        self._trouble("acceptance_drop", text if alarmed else None)
        self._usual = usual + _WEIGHT * (now - usual)

    def _fallbacks(self, recent: Recent, deployment: Deployment) -> None:
        limit = deployment.runtime.fallback_threshold_pct
        if limit is None or recent.n_rounds < _MIN_ROUNDS:
            return
        share = 100 * recent.fallback_share
        text = f"{share:.0f} % of recent rounds were plain, over {limit:g} %"
        self._trouble("fallback_share", text if share > limit else None)

    def _look_at_memory(self) -> None:
        if self._memory.look():
            text = f"{self._memory.used_pct:.0f} % of memory is in use"
            self._trouble("memory_pressure", text)
            self._drafter.give_up()
        else:
            self._trouble("memory_pressure", None)
            self._drafter.come_back()
