"""Counts of speculation over many answers, by what engines tell: each token counted once.

Two sources, never added: what answers tell of themselves, and what a metrics page gained. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from parlay.reading.counters import Counters
from parlay.reading.speculation import Speculation


@dataclass(slots=True)
class Tally:
    """Sums; a figure nobody told is None."""

    n_answers: int = 0
    n_generated: int = 0
    n_told: int = 0  # answers or pages that spoke of drafts
    n_rounds: int = 0
    n_speculated_rounds: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    accepted_at: Counter[int] = field(default_factory=Counter)  # by position, from 1

    def add_answer(self, n_tokens: int, told: Speculation | None) -> None:
        """One answer."""
        self.n_answers += 1
        self.n_generated += n_tokens
        if told is None:
            return
        self.n_told += 1
        self.n_rounds += max(0, n_tokens - told.accepted) if told.rounds is None else told.rounds
        self.n_speculated_rounds += told.speculated_rounds or 0
        self.n_drafted += told.drafted
        self.n_accepted += told.accepted
        self.accepted_at.update({j: n for j, n in enumerate(told.accepted_at, 1) if n})

    def add(self, other: Tally) -> None:
        """Another one's sums."""
        for name in ("n_answers", "n_generated", "n_told", "n_rounds", "n_speculated_rounds"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.n_drafted += other.n_drafted
        self.n_accepted += other.n_accepted
        self.accepted_at.update(other.accepted_at)

    @property
    def token_acceptance(self) -> float | None:
        return self.n_accepted / self.n_drafted if self.n_drafted else None

    @property
    def acceptance_length(self) -> float | None:
        return (self.n_rounds + self.n_accepted) / self.n_rounds if self.n_rounds else None

    @property
    def draft_share(self) -> float | None:
        return self.n_accepted / self.n_generated if self.n_generated and self.n_told else None

    def as_dict(self) -> dict[str, Any]:
        """In the words of docs/explanation/architecture.md."""
        told = self.n_told > 0
        return {
            "generated": self.n_generated,
            "rounds": self.n_rounds if told else None,
            "drafted": self.n_drafted if told else None,
            "accepted": self.n_accepted if told else None,
            "token_acceptance": _rounded(self.token_acceptance),
            "draft_share": _rounded(self.draft_share),
            "acceptance_length": _rounded(self.acceptance_length),
            "accepted_at": {str(j): n for j, n in sorted(self.accepted_at.items())},
        }


class Page:
    """What one server's metrics page gained since the gateway looks at it."""

    def __init__(self) -> None:
        self.last: Counters | None = None
        self.gained = Tally()

    def see(self, page: Counters) -> None:
        """A page read just now; after a restart of its server counters begin at nothing."""
        if not page.speculates:
            return
        before = self.last
        if before is not None and page.drafted >= before.drafted:
            self._gain(before, page)
        elif before is not None:
            self._gain(Counters(), page)
        self.last = page

    def _gain(self, before: Counters, now: Counters) -> None:
        drafts = max(0, now.drafts - before.drafts)
        gained = self.gained
        gained.n_told += drafts > 0
        gained.n_speculated_rounds += drafts
        gained.n_drafted += max(0, now.drafted - before.drafted)
        gained.n_accepted += max(0, now.accepted - before.accepted)
        for j, value in now.accepted_at.items():
            gained.accepted_at[j + 1] += max(0, round(value - before.accepted_at.get(j, 0.0)))


def together(parts: Iterable[tuple[Tally, Page]]) -> Tally:
    """Over all servers: answers where they tell, else the page; generated tokens from answers."""
    total = Tally()
    for told, page in parts:
        if told.n_told or not page.gained.n_told:
            total.add(told)
            continue
        rounds = max(0, told.n_generated - page.gained.n_accepted)
        total.add(Tally(told.n_answers, told.n_generated, n_rounds=rounds))
        total.add(page.gained)
    return total


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
