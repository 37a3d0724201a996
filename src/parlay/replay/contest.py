"""A controller beside plain decoding, every fixed window, and the oracle, on the same recordings.

Knows replays and hindsight; decides nothing. Ratios are times: 1.1 means in 1 / 1.1 of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from parlay.control.controller import Controller, FixedWindow
from parlay.control.prices.cost import CostTable
from parlay.control.profit import ProfitController
from parlay.errors import BadRequest
from parlay.replay.hindsight import (
    WINDOWS,
    best_fixed,
    fixed_seconds,
    oracle_seconds,
    plain_seconds,
)
from parlay.replay.recording import Recording
from parlay.replay.replay import Replay
from parlay.replay.rivals import RULES, rival

MakeController = Callable[[CostTable], Controller]


@dataclass(frozen=True, slots=True)
class Compared:
    """One recording under one cost table: seconds of the same tokens, made in several ways."""

    id: str
    category: str
    n_tokens: int
    seconds: float
    plain_s: float
    best_fixed_s: float  # the best window and proposer for this recording, in hindsight
    oracle_s: float


@dataclass(frozen=True, slots=True)
class Contest:
    """Recordings under one cost table."""

    costs: str
    recordings: tuple[Compared, ...]
    fixed_s: dict[tuple[str, int], float]  # by proposer and window, all recordings together
    best_proposer: str  # of one fixed window for all of them
    best_window: int
    best_s: float

    @property
    def n_tokens(self) -> int:
        return sum(r.n_tokens for r in self.recordings)

    def total(self, field: str) -> float:
        return float(sum(getattr(r, field) for r in self.recordings))

    def mean_over(self, field: str) -> float:
        """The average over recordings of another way's time over the controller's."""
        ratios = [float(getattr(r, field)) / r.seconds for r in self.recordings]
        return sum(ratios) / len(ratios)

    def least_over(self, field: str) -> float:
        return float(min(getattr(r, field) / r.seconds for r in self.recordings))

    def as_dict(self) -> dict[str, Any]:
        """The public JSON form."""
        seconds = self.total("seconds")
        rate = {"plain": self.total("plain_s"), "controller": seconds, "best_fixed": self.best_s}
        rate["oracle"] = self.total("oracle_s")
        return {
            "costs": self.costs,
            "tokens": self.n_tokens,
            "tokens_per_second": {k: round(self.n_tokens / s, 3) for k, s in rate.items()},
            "fixed_tokens_per_second": {
                f"{proposer}-{k}": round(self.n_tokens / s, 3)
                for (proposer, k), s in self.fixed_s.items()
            },
            "best_fixed": {"proposer": self.best_proposer, "window": self.best_window},
            "mean_over_best_fixed": round(self.mean_over("best_fixed_s"), 4),
            "mean_over_oracle": round(self.mean_over("oracle_s"), 4),
            "mean_over_plain": round(self.mean_over("plain_s"), 4),
            "least_over_plain": round(self.least_over("plain_s"), 4),
        }


def compare(
    recordings: Sequence[Recording],
    costs: CostTable,
    proposers: tuple[str, ...],
    make: MakeController,
    *,
    fresh: bool = False,
) -> Contest:
    """Run a controller; `fresh`: it starts anew with every recording."""
    runs = [[r] for r in recordings] if fresh else [recordings]
    seconds = [s for run in runs for s in _seconds(run, costs, proposers, make)]
    compared = tuple(
        Compared(
            r.id,
            r.category,
            r.n_tokens,
            taken,
            plain_seconds(r, costs),
            best_fixed([r], costs, proposers)[2],
            oracle_seconds(r, costs, proposers),
        )
        for r, taken in zip(recordings, seconds, strict=True)
    )
    fixed = {
        (proposer, k): sum(fixed_seconds(r, costs, proposer, k) for r in recordings)
        for proposer in proposers
        for k in WINDOWS
    }
    return Contest(costs.name, compared, fixed, *best_fixed(recordings, costs, proposers))


def _seconds(
    recordings: Sequence[Recording],
    costs: CostTable,
    proposers: tuple[str, ...],
    make: MakeController,
) -> list[float]:
    outcomes = Replay(recordings, proposers).run(make(costs.copy()), costs)
    return [outcome.seconds for outcome in outcomes]


def controller_named(name: str, proposer: str) -> MakeController:
    """profit, none, fixed-K or a rival's rule; all but profit bet on one proposer."""
    if name == "profit":
        return ProfitController
    if name == "none":
        return lambda _costs: FixedWindow(0)
    window = name.removeprefix("fixed-")
    if name in RULES or (name.startswith("fixed-") and window.isdigit()):
        return lambda _costs: rival(name, proposer)
    known = ", ".join(("profit", "none", "fixed-K", *RULES))
    raise BadRequest(f"no controller {name!r}; use one of {known}")
