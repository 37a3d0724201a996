"""A sample: one measured request, whatever came of it, failures included.

Plain data with bounds, the same in the samples file and in a result; knows no subject.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

MAX_LABEL: Final = 96
MAX_REASON: Final = 200
MAX_COUNT: Final = 10_000_000
MAX_SECONDS: Final = 1_000_000.0
MAX_POSITIONS: Final = 128

Outcome = Literal["ok", "timeout", "error"]


def _check_printable(text: str) -> str:
    if not text.isprintable():
        raise PydanticCustomError("label", "write it without control characters")
    return text


Printable = AfterValidator(_check_printable)
Label = Annotated[str, Field(min_length=1, max_length=MAX_LABEL), Printable]
Reason = Annotated[str, Field(max_length=MAX_REASON), Printable]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Strict(BaseModel):
    """Data that admits nothing it does not know."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


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


class Readings(Strict):
    """The machine at the moment of a sample, as far as it tells."""

    load_1min: Annotated[Finite, Field(ge=0, le=100_000)] | None = None
    cpu_mhz: Annotated[Finite, Field(ge=0, le=100_000)] | None = None
    cpu_celsius: Annotated[Finite, Field(ge=-100, le=200)] | None = None
    gpu_mhz: Annotated[Finite, Field(ge=0, le=100_000)] | None = None
    gpu_celsius: Annotated[Finite, Field(ge=-100, le=200)] | None = None
    gpu_watts: Annotated[Finite, Field(ge=0, le=100_000)] | None = None


class Sample(Strict):
    """One request of one arm. Times are the client's, except `server_decode_s`."""

    prompt: Label
    arm: Label
    repeat: Count
    position: Count  # place in the order of the run
    at_s: Seconds  # since the run began, pauses between sittings left out
    outcome: Outcome
    error: Reason | None = None
    n_tokens: Count = 0
    counted: Literal["usage", "chunks"] = "usage"  # how `n_tokens` is known
    n_prompt: Count | None = None
    first_token_s: Seconds = 0.0
    decode_s: Seconds = 0.0  # from the first token to the last
    wall_s: Seconds = 0.0
    server_decode_s: Seconds | None = None  # the same by the server's own clock
    finish_reason: Label | None = None
    text_sha256: Sha256 | None = None
    speculation: Speculation | None = None
    readings: Readings | None = None

    def tokens_per_second(self, clock: Clock) -> float | None:
        """Decoding speed after the first token, or over everything; None if it has none."""
        seconds = {
            "decode": self.decode_s,
            "server": self.server_decode_s,
            "wall": self.wall_s,
        }[clock]
        n = self.n_tokens if clock == "wall" else self.n_tokens - 1
        if self.outcome != "ok" or n < 1 or not seconds:
            return None
        return n / seconds


# Which clock a comparison reads. It must be the same for both sides of a pair.
Clock = Literal["decode", "server", "wall"]


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
