"""The live figures: one snapshot of everything a watcher wants to see, and the course of it so far.

Knows the service, no HTTP. The page and `parlay ps` show the same snapshot. Its fields are a
public interface: docs/reference/page.md.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from parlay.backend.plain_speed import PlainSpeed
from parlay.decoding.round import Round
from parlay.server.figures.footprint import Footprint
from parlay.server.figures.recent_answers import ALL, AnswerGroup, Key, figures
from parlay.server.lifecycle.service import Service

TICK_S = 1.0
HISTORY = 300  # ticks


@dataclass(frozen=True, slots=True)
class _Recent:
    """The figures of a group's last rounds, and when they were made."""

    n_generated: int
    made: int  # by which snapshot
    figures: dict[str, Any]


class LiveSnapshots:
    """Makes snapshots; the figures of a moment are those since the last one."""

    def __init__(self, service: Service, clock: Callable[[], float] = time.monotonic) -> None:
        self._service = service
        self._clock = clock
        self._last = clock()
        self._footprint = Footprint(service)
        self._recent: dict[Key, _Recent] = {}
        self._n_snapshots = 0
        self._history: dict[Key, deque[dict[str, Any]]] = {}

    async def prepare(self) -> None:
        """What takes longer than a snapshot may."""
        await self._footprint.prepare()

    def snapshot(self, n_viewers: int = 0) -> dict[str, Any]:
        """Everything, now."""
        service = self._service
        now = self._clock()
        elapsed, self._last = max(1e-3, now - self._last), now
        service.recent.take_in()
        groups = self._groups(elapsed)
        self._forget()
        return {
            "time": round(time.time(), 3),
            "tick_s": TICK_S,
            "uptime_s": round(time.time() - service.started, 1),
            "viewers": n_viewers,
            "model": service.model_name,
            "mode": service.engine.mode,
            "exact_class": service.engine.exact_name,
            "exact_cost_percent": service.engine.chosen.cost_percent,
            "proposers": service.engine.drafts.named,
            "drafter": service.drafter.state,
            "answered": service.recent.n_answered,
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

    def _groups(self, elapsed: float) -> list[dict[str, Any]]:
        """All of them together first; where there is one group only, it is all of them."""
        recent, baseline = self._service.recent, self._service.observer.baseline
        groups = list(recent.groups.values())
        self._refresh(groups)
        found = [self._group(g, moment(g.take_since(), elapsed, baseline)) for g in groups]
        rounds = recent.total.take_since()
        if len(groups) == 1:
            total = {"route": ALL, "model": ALL, **_figures_of(found[0])}
            self._remember(recent.total.key, total["now"])
        else:
            self._compute(recent.total)
            total = self._group(recent.total, moment(rounds, elapsed, baseline))
        return [total, *found]

    def _group(self, group: AnswerGroup, now: dict[str, Any]) -> dict[str, Any]:
        self._remember(group.key, now)
        return {
            "route": group.key.route,
            "model": group.key.model,
            "requests": group.n_requests,
            "generated": group.n_generated,
            "now": now,
            "recent": self._recent[group.key].figures,
        }

    def _remember(self, key: Key, now: dict[str, Any]) -> None:
        points = self._history.setdefault(key, deque(maxlen=HISTORY))
        points.append({"time": round(time.time(), 1), **now})

    def _refresh(self, groups: Sequence[AnswerGroup]) -> None:
        """The last rounds take longest: of the groups that changed, one a snapshot in turn."""
        self._n_snapshots += 1
        known = self._recent
        for group in groups:
            if group.key not in known:
                self._compute(group)
        changed = [g for g in groups if known[g.key].n_generated != g.n_generated]
        if changed:
            self._compute(min(changed, key=lambda group: known[group.key].made))

    def _compute(self, group: AnswerGroup) -> None:
        made = figures(tuple(group.rounds), self._service.observer.baseline)
        self._recent[group.key] = _Recent(group.n_generated, self._n_snapshots, made)

    def _forget(self) -> None:
        """Groups the recent has dropped."""
        recent = self._service.recent
        for key in [k for k in self._history if k not in recent.groups and k != recent.total.key]:
            del self._history[key]
            self._recent.pop(key, None)

    # -- the machine ----------------------------------------------------------

    def _machine(self) -> dict[str, Any]:
        service = self._service
        engine = service.engine
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
            "queue": {"waiting": engine.n_waiting, "size": service.deployment.server.queue_size},
            "memory": {
                **self._footprint.as_dict(),
                "used_pct": service.memory.used_pct,
                "limit_pct": service.memory.limit_pct,
            },
            "remembered_tokens": told.n_tokens if (told := service.answer_memory.told) else None,
        }


def _figures_of(group: dict[str, Any]) -> dict[str, Any]:
    return {name: group[name] for name in ("requests", "generated", "now", "recent")}


def moment(rounds: Sequence[Round], elapsed: float, baseline: PlainSpeed) -> dict[str, Any]:
    """The rounds of one tick in a few numbers; None where there is nothing to tell."""
    generated = drafted = accepted = 0
    plain_s = draft_s = verify_s = overhead_s = 0.0
    for r in rounds:
        n, timing = r.n_sequences, r.timing  # the sequences of a pass share its time
        generated += r.n_generated
        drafted += r.n_drafted
        accepted += r.n_accepted
        plain_s += (baseline.of(n) or 0.0) * r.n_generated / n
        draft_s += timing.draft_s / n
        verify_s += timing.verify_s / n
        overhead_s += timing.overhead_s / n
    n_rounds, spent_s = len(rounds), draft_s + verify_s + overhead_s
    return {
        "tokens_per_s": round(generated / elapsed, 2),
        "rounds": n_rounds,
        "speedup": round(plain_s / spent_s, 4) if drafted and plain_s and spent_s else None,
        "window": round(drafted / n_rounds, 3) if n_rounds else None,
        "token_acceptance": round(accepted / drafted, 4) if drafted else None,
        "acceptance_length": round(generated / n_rounds, 4) if n_rounds else None,
        "draft_ms": round(1e3 * draft_s, 3),
        "verify_ms": round(1e3 * verify_s, 3),
        "overhead_ms": round(1e3 * overhead_s, 3),
    }
