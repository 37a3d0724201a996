"""Measurements of pairs on this machine, kept beside each other and found by the files' identity.

Knows how a measurement is stored; knows nothing of how it was taken.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from parlay import store

_KIND = "pair-baselines"


@dataclass(frozen=True, slots=True)
class Baseline:
    """What a pair did over so many generations."""

    machine: str
    cycles: int
    window: int
    token_acceptance: float
    acceptance_length: float
    draft_cost: float  # a drafted token over a target's own
    by_category: Mapping[str, float]  # token acceptance
    by_position: tuple[float, ...]  # P(accepted | those before it were)
    speedups: Mapping[str, float]  # predicted, by window
    break_even: Mapping[str, float | None]  # acceptance from which each window pays
    measured_at: float = field(default_factory=time.time)  # seconds since 1970
    first_by_category: Mapping[str, float] = field(default_factory=dict)  # of first draft tokens
    length_by_category: Mapping[str, float] = field(default_factory=dict)  # acceptance length

    @property
    def first_token(self) -> float:
        """Share of first draft tokens that were accepted."""
        return self.by_position[0] if self.by_position else 0.0

    @property
    def best_window(self) -> int:
        """The window with the highest predicted speed-up; 0 where none pays."""
        best = max(self.speedups, key=lambda k: self.speedups[k], default="0")
        return int(best) if self.speedups.get(best, 0.0) > 1 else 0

    def as_dict(self) -> dict[str, Any]:
        """The stored and public JSON form."""
        return {**asdict(self), "best_window": self.best_window}


def save_baseline(target: Path, drafter: Path, baseline: Baseline) -> None:
    """Keep the newest measurement of a pair."""
    store.save(_KIND, _key(target, drafter), baseline.as_dict())


def load_baseline(target: Path, drafter: Path) -> Baseline | None:
    """The measurement of exactly these files, if there is one."""
    record = store.load(_KIND, _key(target, drafter))
    if record is None:
        return None
    record.pop("best_window", None)
    try:
        return Baseline(**{**record, "by_position": tuple(record["by_position"])})
    except (KeyError, TypeError):  # written by another version
        return None


def _key(target: Path, drafter: Path) -> str:
    return store.fingerprint(store.file_identity(target), store.file_identity(drafter))
