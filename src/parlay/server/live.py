"""The live figures: one snapshot of everything a watcher wants to see, and the course of it so far.

Knows the service, no HTTP. The page and `parlay top` show the same snapshot. Its fields are a
public interface: docs/page.md.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any

from parlay.decoding.round import Round
from parlay.server.baseline import Baseline
from parlay.server.footprint import Footprint
from parlay.server.ledger import MAX_GROUPS, Group, Key, figures
from parlay.server.service import Service

TICK_S = 1.0
HISTORY = 300  # ticks


class Live:
    """Makes snapshots; the figures of a moment are those since the last one."""

    def __init__(self, service: Service, clock: Callable[[], float] = time.monotonic) -> None:
        self._service = service
        self._clock = clock
        self._last = clock()
        self._footprint = Footprint(service)
        self._recent: dict[Key, tuple[int, dict[str, Any]]] = {}  # figures of rounds seen before
        self._history: OrderedDict[Key, deque[dict[str, Any]]] = OrderedDict()

    async def prepare(self) -> None:
        """What takes longer than a snapshot may."""
        await self._footprint.prepare()

    def snapshot(self, n_viewers: int = 0) -> dict[str, Any]:
        """Everything, now."""
        service = self._service
        now = self._clock()
        elapsed, self._last = max(1e-3, now - self._last), now
        service.ledger.take_in()
        groups = [self._group(group, elapsed) for group in self._groups()]
        self._forget()
        return {
            "time": round(time.time(), 3),
            "tick_s": TICK_S,
            "uptime_s": round(time.time() - service.started, 1),
            "viewers": n_viewers,
            "model": service.model_name,
            "mode": service.engine.mode,
            "proposers": sorted(service.engine.bets.proposers),
            "drafter": service.drafter.state,
            "answered": service.ledger.n_answered,
            **self._machine(),
            "alerts": [alert.as_dict() for alert in service.alerts.active.values()],
            "groups": groups,
        }

    def history(self) -> dict[str, Any]:
        """What the last minutes were like, for whoever starts to look now."""
        return {
            "groups": [
                {"route": key.route, "model": key.model, "points": list(points)}
                for key, points in self._history.items()
            ]
        }

    # -- groups ---------------------------------------------------------------

    def _groups(self) -> list[Group]:
        ledger = self._service.ledger
        return [ledger.total, *ledger.groups.values()]

    def _group(self, group: Group, elapsed: float) -> dict[str, Any]:
        baseline = self._service.observer.baseline
        now = moment(group.take_since(), elapsed, baseline)
        points = self._history.setdefault(group.key, deque(maxlen=HISTORY))
        points.append({"time": round(time.time(), 1), **now})
        return {
            "route": group.key.route,
            "model": group.key.model,
            "requests": group.n_requests,
            "generated": group.n_generated,
            "now": now,
            "recent": self._figures(group, baseline),
        }

    def _figures(self, group: Group, baseline: Baseline) -> dict[str, Any]:
        """Computed again only where rounds were added."""
        known = self._recent.get(group.key)
        if known is None or known[0] != group.n_generated:
            known = group.n_generated, figures(tuple(group.rounds), baseline)
            self._recent[group.key] = known
        return known[1]

    def _forget(self) -> None:
        """Groups the ledger has dropped."""
        while len(self._history) > MAX_GROUPS + 1:
            key, _ = self._history.popitem(last=False)
            self._recent.pop(key, None)

    # -- the machine ----------------------------------------------------------

    def _machine(self) -> dict[str, Any]:
        service = self._service
        engine, gauges = service.engine, service.gauges()
        single = service.observer.baseline.of(1)
        working = {seq.seq_id: seq for seq in engine.active}
        return {
            "baseline_ms": None if single is None else round(1e3 * single, 3),
            "slots": [
                {
                    "id": slot.seq_id,
                    "busy": slot.seq_id in working,
                    "prompt": len(seq.request.prompt) if (seq := working.get(slot.seq_id)) else 0,
                    "generated": seq.n_generated if seq else 0,
                    "cached": seq.n_cached if seq else len(slot.tokens),
                }
                for slot in engine.slots.all
            ],
            "context_size": engine.target.context_size,
            "queue": {"waiting": gauges.queue_length, "size": service.deployment.server.queue_size},
            "memory": {
                **self._footprint.as_dict(),
                "used_pct": gauges.memory_used_pct,
                "limit_pct": service.memory.limit_pct,
            },
        }


def moment(rounds: Sequence[Round], elapsed: float, baseline: Baseline) -> dict[str, Any]:
    """The rounds of one tick in a few numbers; None where there is nothing to tell."""
    found = figures(rounds, baseline)
    n_rounds = len(rounds)
    shares = [1.0 / r.n_sequences for r in rounds]
    parts = {
        "draft_ms": sum(r.timing.draft_s * x for r, x in zip(rounds, shares, strict=True)),
        "verify_ms": sum(r.timing.verify_s * x for r, x in zip(rounds, shares, strict=True)),
        "overhead_ms": sum(r.timing.overhead_s * x for r, x in zip(rounds, shares, strict=True)),
    }
    return {
        "tokens_per_s": round(found["generated"] / elapsed, 2),
        "rounds": n_rounds,
        "speedup": found["speedup"],
        "window": round(found["drafted"] / n_rounds, 3) if n_rounds else None,
        "token_acceptance": found["token_acceptance"] if found["drafted"] else None,
        "acceptance_length": found["acceptance_length"] if n_rounds else None,
        **{name: round(1e3 * seconds, 3) for name, seconds in parts.items()},
    }
