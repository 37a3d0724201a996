"""What a race came to: a row for every candidate, the winner, and the winner of each route.

Reads the tuner's records; writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parlay.bench.comparison import acceptance
from parlay.bench.sample import Sample
from parlay.tuning.candidate import Candidate
from parlay.tuning.race import TuningRace
from parlay.tuning.sitting import PLAIN, SittingWay
from parlay.tuning.tuner import Tuner, TuningRecord, identical

TOO_LATE = "not raced: the time was over"  # a row's state


@dataclass(frozen=True, slots=True)
class Row:
    """One candidate of the table."""

    label: str
    state: str  # wins, pays, no difference, stopped early, not raced, or why it was not
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    n_pairs: int = 0
    n_bytes: int = 0
    n_identical: int = 0
    n_compared: int = 0
    token_acceptance: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """The public JSON form."""
        return {
            "candidate": self.label,
            "state": self.state,
            "speedup": self.ratio and round(self.ratio, 4),
            "low": self.low and round(self.low, 4),
            "high": self.high and round(self.high, 4),
            "pairs": self.n_pairs,
            "memory_bytes": self.n_bytes,
            "identical": self.n_identical,
            "compared": self.n_compared,
            "token_acceptance": self.token_acceptance,
        }


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything a tuning found out."""

    rows: tuple[Row, ...]
    winner: SittingWay | None  # None: plain decoding
    routes: Mapping[str, SittingWay | None] = field(
        default_factory=dict
    )  # where another one is faster
    plain_tokens_per_second: float | None = None
    n_tokens: int = 0
    n_prompts: int = 0
    spent_s: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """The public JSON form."""
        return {
            "winner": PLAIN if self.winner is None else self.winner.label,
            "routes": {
                name: PLAIN if way is None else way.label for name, way in self.routes.items()
            },
            "candidates": [row.as_dict() for row in self.rows],
            "plain_tokens_per_second": self.plain_tokens_per_second,
            "prompts": self.n_prompts,
            "max_tokens": self.n_tokens,
            "seconds": round(self.spent_s, 1),
        }


def outcome(tuner: Tuner, unraced: Sequence[Candidate]) -> Outcome:
    """The table, in order of speed."""
    race, ways = tuner.race, {w.label: w for s in tuner.sittings for w in s.ways}
    winner = None if race.winner is None else ways[race.winner]
    rows = [_row(race, record, way) for record in tuner.records for way in record.sitting.ways]
    rows.sort(key=lambda row: (row.label != race.winner, -(row.ratio or 0.0)))
    rows += [Row(c.name, f"not raced: {c.problem}") for c in unraced if c.problem]
    return Outcome(
        rows=tuple(rows),
        winner=winner,
        routes=dict(_routes(tuner, winner, list(ways.values()))),
        plain_tokens_per_second=_plain_speed(tuner.records),
        n_tokens=tuner.n_tokens,
        n_prompts=len(tuner.workload.suite.prompts),
        spent_s=tuner.spent_s,
    )


def _row(race: TuningRace, record: TuningRecord, way: SittingWay) -> Row:
    n_bytes = 0 if way.drafter is None else way.drafter.n_bytes
    standing = race.standing(way.label)
    if standing is None:
        state = TOO_LATE if record.problem is None else f"not raced: {record.problem}"
        return Row(way.label, state, n_bytes=n_bytes)
    same, compared = identical(record.samples, way.label)
    taken = acceptance([s for s in record.samples if s.arm == way.label])
    return Row(
        label=way.label,
        state=_state(race, way.label),
        ratio=standing.found.ratio,
        low=standing.low,
        high=standing.high,
        n_pairs=standing.found.n_pairs,
        n_bytes=n_bytes,
        n_identical=same,
        n_compared=compared,
        token_acceptance=taken.token_acceptance if taken and taken.counts.drafted else None,
    )


def _state(race: TuningRace, label: str) -> str:
    if label == race.winner:
        return "wins"
    if label in race.stopped:
        return "stopped early"
    standing = race.standing(label)
    return "pays" if standing is not None and standing.pays else "no difference"


def _routes(
    tuner: Tuner, winner: SittingWay | None, ways: Sequence[SittingWay]
) -> Iterator[tuple[str, SittingWay | None]]:
    """Routes on which something that the winner's files allow is surely faster than it."""
    if winner is None:
        return
    race, others = tuner.race, [w for w in ways if w != winner and _allowed(w, winner)]
    for route in sorted(set(tuner.workload.routes.values())):
        prompts = [p for p, name in tuner.workload.routes.items() if name == route]
        found = {w: s for w in others if (s := race.standing(w.label, prompts)) and s.pays}
        better = [w for w in found if race.better_on(prompts, w.label, winner.label)]
        if better:
            yield route, max(better, key=lambda w: found[w].found.ratio)
        elif race.better_on(prompts, None, winner.label):
            yield route, None


def _allowed(way: SittingWay, winner: SittingWay) -> bool:
    """Loaded in any case: the winner's drafter, and what needs none and is loaded with it."""
    if way.drafter is not None:
        return way.drafter == winner.drafter
    return way.proposers in winner.proposers.split(",") or winner.drafter is not None


def _plain_speed(records: Sequence[TuningRecord]) -> float | None:
    """The median over prompts, of the first sitting that has one."""
    for record in records:
        speeds = sorted(_speeds(record.samples))
        if speeds:
            return round(speeds[len(speeds) // 2], 2)
    return None


def _speeds(samples: Sequence[Sample]) -> Iterator[float]:
    for sample in samples:
        speed = sample.tokens_per_second("decode") if sample.arm == PLAIN else None
        if speed is not None:
            yield speed
