"""The gateway's live figures: the server's snapshot, made of answers instead of rounds.

The page and `parlay ps` show it; its fields are those of docs/reference/page.md. Everything is
bounded.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from parlay.front.remote.pools import Pools
from parlay.front.remote.server import Server as Upstream
from parlay.reading.speculation import Speculation
from parlay.web.memory_pressure import process_bytes

TICK_S = 1.0
HISTORY = 300  # ticks
RECENT = 256  # answers of each group
MAX_GROUPS = 32
MAX_REQUESTS = 100
ALL = "all"


@dataclass(frozen=True, slots=True)
class LiveAnswer:
    """One answer in numbers."""

    generated: int
    told: Speculation | None
    fallback: str | None
    seconds: float  # decoding
    plain_s: float | None  # what its tokens take plainly on its route


@dataclass(slots=True)
class LiveGroup:
    """The answers of one route."""

    route: str
    answers: deque[LiveAnswer] = field(default_factory=lambda: deque(maxlen=RECENT))
    since: deque[LiveAnswer] = field(default_factory=lambda: deque(maxlen=RECENT))  # the last look
    points: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=HISTORY))
    n_requests: int = 0
    n_generated: int = 0
    n_seen: int = 0  # tokens at the last look


class GatewayLive:
    """Takes answers in, and makes snapshots."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()
        self._groups: OrderedDict[str, LiveGroup] = OrderedDict({ALL: LiveGroup(ALL)})
        self.requests: deque[dict[str, Any]] = deque(maxlen=MAX_REQUESTS)
        self.n_answered = 0

    def token(self, route: str, n: int = 1) -> None:
        """Text came by; whole answers and corrections by the engine's own count come as many."""
        for group in self._of(route):
            group.n_generated += n

    def take(self, route: str, answer: LiveAnswer, record: dict[str, Any]) -> None:
        """An answer is over."""
        self.n_answered += 1
        self.requests.append(record)
        for group in self._of(route):
            group.n_requests += 1
            group.answers.append(answer)
            group.since.append(answer)

    def snapshot(
        self, pools: Pools, about: dict[str, Any], queue_size: int, n_viewers: int = 0
    ) -> dict[str, Any]:
        """Everything, now. `about`: what does not come from answers."""
        now = self._clock()
        elapsed, self._last = max(1e-3, now - self._last), now
        return {
            "time": round(time.time(), 3),
            "tick_s": TICK_S,
            "viewers": n_viewers,
            **about,
            "mode": None,
            "exact_class": None,
            "exact_cost_percent": None,
            "proposers": [],
            "drafter": "none",
            "answered": self.n_answered,
            "baseline_ms": None,
            "slots": [_slot(i, up) for i, up in enumerate(pools.all)],
            "context_size": max(up.pool.max_concurrent for up in pools.all),
            "queue": {"waiting": pools.n_waiting, "size": queue_size},
            "memory": _memory(),
            "groups": [self._group(group, about["model"], elapsed) for group in self._list()],
        }

    def history(self, model: str) -> dict[str, Any]:
        """What the last minutes were like, for whoever starts to look now."""
        return {
            "groups": [
                {"route": g.route, "model": _model(g, model), "points": list(g.points)}
                for g in self._list()
            ]
        }

    def _list(self) -> list[LiveGroup]:
        """All together first."""
        return [self._groups[ALL], *(g for name, g in self._groups.items() if name != ALL)]

    def _of(self, route: str) -> tuple[LiveGroup, LiveGroup]:
        if route not in self._groups:
            self._groups[route] = LiveGroup(route)
            if len(self._groups) > MAX_GROUPS:
                oldest = next(name for name in self._groups if name != ALL)
                del self._groups[oldest]
        return self._groups[ALL], self._groups[route]

    def _group(self, group: LiveGroup, model: str, elapsed: float) -> dict[str, Any]:
        found = figures(tuple(group.since))
        n = group.n_generated - group.n_seen
        group.n_seen = group.n_generated
        group.since.clear()
        now = {
            "tokens_per_s": round(n / elapsed, 2),
            "rounds": found["rounds"],
            "speedup": found["speedup"],
            "window": round(found["drafted"] / found["rounds"], 3) if found["rounds"] else None,
            "token_acceptance": found["token_acceptance"] if found["drafted"] else None,
            "acceptance_length": found["acceptance_length"] if found["rounds"] else None,
            **dict.fromkeys(("draft_ms", "verify_ms", "overhead_ms"), 0.0),
        }
        group.points.append({"time": round(time.time(), 1), **now})
        return {
            "route": group.route,
            "model": _model(group, model),
            "requests": group.n_requests,
            "generated": group.n_generated,
            "now": now,
            "recent": figures(tuple(group.answers)),
        }


def figures(answers: Sequence[LiveAnswer]) -> dict[str, Any]:
    """Answers summed up with the fields of `speculation`; what nobody told is nothing."""
    told = [(a, a.told) for a in answers if a.told is not None]
    drafted = sum(t.drafted for _, t in told)
    accepted = sum(t.accepted for _, t in told)
    generated = sum(a.generated for a, _ in told)
    rounds = sum(_rounds(a, t) for a, t in told)
    timed = [a for a in answers if a.plain_s and a.seconds]
    plain_s, spent_s = (sum(a.plain_s or 0.0 for a in timed), sum(a.seconds for a in timed))
    return {
        "generated": generated,
        "rounds": rounds,
        "drafted": drafted,
        "accepted": accepted,
        "token_acceptance": round(accepted / drafted, 4) if drafted else 0.0,
        "sequence_acceptance": 0.0,
        "draft_share": round(accepted / generated, 4) if generated else 0.0,
        "acceptance_length": round(generated / rounds, 4) if rounds else 0.0,
        "accepted_histogram": {},
        "acceptance_by_position": _by_position([t for _, t in told]),
        "windows": {},
        "proposers": {},
        "fallbacks": dict(Counter(a.fallback for a in answers if a.fallback)),
        "draft_ms": 0.0,
        "verify_ms": 0.0,
        "overhead_ms": 0.0,
        "speedup": round(plain_s / spent_s, 4) if spent_s and drafted else None,
    }


def _rounds(answer: LiveAnswer, told: Speculation) -> int:
    return max(0, answer.generated - told.accepted) if told.rounds is None else told.rounds


def _by_position(told: Sequence[Speculation]) -> list[float]:
    tried: Counter[int] = Counter()
    accepted: Counter[int] = Counter()
    for found in told:
        tried.update(dict(enumerate(found.tried_at)))
        accepted.update(dict(enumerate(found.accepted_at)))
    return [round(accepted[j] / tried[j], 4) for j in sorted(tried) if tried[j]]


def _model(group: LiveGroup, model: str) -> str:
    return ALL if group.route == ALL else model


def _slot(i: int, up: Upstream) -> dict[str, Any]:
    """A server in a slot's words: its requests stand where the filling of a cache does."""
    return {
        "id": i,
        "busy": up.in_flight > 0,
        "prompt": 0,
        "generated": up.told.n_generated,
        "cached": up.in_flight,
        "pool": up.pool.name,
        "state": up.health.state,
    }


def _memory() -> dict[str, Any]:
    used = process_bytes()
    return {
        "place": "ram",
        "planned_bytes": None,
        "used_bytes": used,
        "used_pct": 0.0,
        "limit_pct": 100.0,
    }
