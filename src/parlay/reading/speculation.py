"""What speculation did in one answer or over many, in the project's words.

Plain data with bounds; knows no engine, no file and no HTTP.
"""

from __future__ import annotations

from pydantic import Field

from parlay.reading.bounds import MAX_POSITIONS, Count, Label, Seconds, Strict


class Speculation(Strict):
    """What speculation did in one answer; None where the subject does not tell."""

    drafted: Count
    accepted: Count
    rounds: Count | None = None
    speculated_rounds: Count | None = None
    fully_accepted: Count | None = None
    # By position in the draft, from the first: rounds that tried it, rounds that accepted it.
    tried_at: list[Count] = Field(default=[], max_length=MAX_POSITIONS)
    accepted_at: list[Count] = Field(default=[], max_length=MAX_POSITIONS)
    windows: dict[Label, Count] = Field(default={}, max_length=MAX_POSITIONS)
    proposers: dict[Label, Count] = Field(default={}, max_length=32)
    fallbacks: dict[Label, Count] = Field(default={}, max_length=32)
    draft_s: Seconds | None = None
    verify_s: Seconds | None = None
    overhead_s: Seconds | None = None


def pooled(parts: list[Speculation]) -> Speculation | None:
    """The sum over answers. A figure that one of them lacks is not known of the sum."""
    if not parts:
        return None
    return Speculation(
        drafted=sum(p.drafted for p in parts),
        accepted=sum(p.accepted for p in parts),
        rounds=_total([p.rounds for p in parts]),
        speculated_rounds=_total([p.speculated_rounds for p in parts]),
        fully_accepted=_total([p.fully_accepted for p in parts]),
        tried_at=_by_position([p.tried_at for p in parts]),
        accepted_at=_by_position([p.accepted_at for p in parts]),
        windows=_by_name([p.windows for p in parts]),
        proposers=_by_name([p.proposers for p in parts]),
        fallbacks=_by_name([p.fallbacks for p in parts]),
        draft_s=_total_s([p.draft_s for p in parts]),
        verify_s=_total_s([p.verify_s for p in parts]),
        overhead_s=_total_s([p.overhead_s for p in parts]),
    )


def _total(values: list[int | None]) -> int | None:
    known = [v for v in values if v is not None]
    return sum(known) if len(known) == len(values) else None


def _total_s(values: list[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) if len(known) == len(values) else None


def _by_position(lists: list[list[int]]) -> list[int]:
    depth = max(map(len, lists), default=0)
    return [sum(row[j] for row in lists if j < len(row)) for j in range(depth)]


def _by_name(tables: list[dict[str, int]]) -> dict[str, int]:
    names = sorted({name for table in tables for name in table}, key=lambda n: (len(n), n))
    return {name: sum(table.get(name, 0) for table in tables) for name in names}
