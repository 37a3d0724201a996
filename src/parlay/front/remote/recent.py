"""What remote servers answered lately, by route: for those who watch.

Made of answers, as an engine's own figures are made of rounds; the same fields. Bounded.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from parlay.reading.speculation import Speculation

_RECENT = 256  # answers of each group
_MAX_GROUPS = 32
ALL = "all"


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer in numbers."""

    generated: int
    told: Speculation | None
    fallback: str | None
    seconds: float  # decoding
    plain_s: float | None  # what its tokens take plainly on its route


@dataclass(slots=True)
class _Group:
    answers: deque[Answered] = field(default_factory=lambda: deque(maxlen=_RECENT))
    since: deque[Answered] = field(default_factory=lambda: deque(maxlen=_RECENT))  # the last look
    n_requests: int = 0
    n_generated: int = 0
    n_seen: int = 0  # tokens at the last look


class Recent:
    """All groups, and the sum of them."""

    def __init__(self) -> None:
        self._groups: OrderedDict[str, _Group] = OrderedDict({ALL: _Group()})
        self._looked = time.monotonic()

    def word(self, route: str, n: int = 1) -> None:
        """So many tokens came by; corrections by a server's own count come as many."""
        for group in self._of(route):
            group.n_generated += n

    def take(self, route: str, answer: Answered) -> None:
        for group in self._of(route):
            group.n_requests += 1
            group.answers.append(answer)
            group.since.append(answer)

    def look(self, model: str) -> list[dict[str, Any]]:
        """Every group with what it did since the last look; all of them together first."""
        now = time.monotonic()
        elapsed, self._looked = max(1e-3, now - self._looked), now
        return [self._told(route, g, model, elapsed) for route, g in self._groups.items()]

    def _of(self, route: str) -> tuple[_Group, _Group]:
        if route not in self._groups:
            self._groups[route] = _Group()
            if len(self._groups) > _MAX_GROUPS:
                del self._groups[next(name for name in self._groups if name != ALL)]
        return self._groups[ALL], self._groups[route]

    def _told(self, route: str, group: _Group, model: str, elapsed: float) -> dict[str, Any]:
        found, n = _figures(tuple(group.since)), group.n_generated - group.n_seen
        group.n_seen = group.n_generated
        group.since.clear()
        rounds, drafted = found["rounds"], found["drafted"]
        now = {
            "tokens_per_s": round(n / elapsed, 2),
            "rounds": rounds,
            "speedup": found["speedup"],
            "window": round(drafted / rounds, 3) if rounds else None,
            "token_acceptance": found["token_acceptance"] if drafted else None,
            "acceptance_length": found["acceptance_length"] if rounds else None,
            **dict.fromkeys(("draft_ms", "verify_ms", "overhead_ms"), 0.0),
        }
        return {
            "route": route,
            "model": ALL if route == ALL else model,
            "requests": group.n_requests,
            "generated": group.n_generated,
            "now": now,
            "recent": _figures(tuple(group.answers)),
        }


def _figures(answers: Sequence[Answered]) -> dict[str, Any]:
    """Answers summed up with the fields of `speculation`; what nobody told is nothing."""
    told = [(a, a.told) for a in answers if a.told is not None]
    drafted = sum(t.drafted for _, t in told)
    accepted = sum(t.accepted for _, t in told)
    generated = sum(a.generated for a, _ in told)
    rounds = sum(
        max(0, a.generated - t.accepted) if t.rounds is None else t.rounds for a, t in told
    )
    timed = [a for a in answers if a.plain_s and a.seconds]
    plain_s, spent_s = sum(a.plain_s or 0.0 for a in timed), sum(a.seconds for a in timed)
    tried_at: Counter[int] = Counter()
    accepted_at: Counter[int] = Counter()
    for _, found in told:
        tried_at.update(dict(enumerate(found.tried_at)))
        accepted_at.update(dict(enumerate(found.accepted_at)))
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
        "acceptance_by_position": [
            round(accepted_at[j] / tried_at[j], 4) for j in sorted(tried_at) if tried_at[j]
        ],
        "windows": {},
        "proposers": {},
        "fallbacks": dict(Counter(a.fallback for a in answers if a.fallback)),
        **dict.fromkeys(("draft_ms", "verify_ms", "overhead_ms"), 0.0),
        "speedup": round(plain_s / spent_s, 4) if spent_s and drafted else None,
    }
