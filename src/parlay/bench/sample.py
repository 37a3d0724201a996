"""A sample: one measured request, whatever came of it, failures included.

Plain data with bounds, the same in the samples file and in a result; knows no subject.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from parlay.reading.bounds import Count, Finite, Label, Reason, Seconds, Sha256, Strict
from parlay.reading.speculation import Speculation

Outcome = Literal["ok", "timeout", "error"]


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
    n_first: Count = 1  # of them, those that came with the first: `decode_s` begins after them
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

    @model_serializer(mode="wrap")
    def _as_ever(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without `n_first` where it is as ever: a record is known by the hash of its fields, and
        those made before there was this one keep theirs."""
        fields: dict[str, Any] = dump(self)
        if fields.get("n_first") == 1:
            del fields["n_first"]
        return fields

    def tokens_per_second(self, clock: Clock) -> float | None:
        """Decoding speed after the first tokens, or over everything; None if it has none."""
        seconds = {
            "decode": self.decode_s,
            "server": self.server_decode_s,
            "wall": self.wall_s,
        }[clock]
        n = self.n_tokens if clock == "wall" else self.n_tokens - max(1, self.n_first)
        if self.outcome != "ok" or n < 1 or not seconds:
            return None
        return n / seconds


# Which clock a comparison reads. It must be the same for both sides of a pair.
Clock = Literal["decode", "server", "wall"]
