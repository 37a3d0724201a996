"""A result record, version 1: everything one run measured, raw samples included.

Plain data with bounds; its JSON Schema is generated from here. Holds no name, path or address.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationError

from parlay.bench.alarms import Caution
from parlay.bench.analysis import BreakEven, Costs
from parlay.bench.comparison import Comparison
from parlay.bench.machine_facts import Bytes, Machine
from parlay.bench.sample import Sample
from parlay.bench.subjects.subject import ArmInfo
from parlay.errors import ParlayError
from parlay.reading.bounds import Count, Label, Reason, Seconds, Sha256, Strict

VERSION: Final = 1
LICENCE: Final = "CC-BY-4.0"
MAX_RECORD_BYTES: Final = 4_000_000
MAX_SAMPLES: Final = 20_000

Id = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
Date = Annotated[str, Field(pattern=r"^20\d\d-[01]\d-[0-3]\d$")]


class BadResult(ParlayError):
    """A file is not a result, or not one that can be believed."""


class SuiteInfo(Strict):
    """Which prompts; their texts are in the suite, not here."""

    name: Label
    version: Annotated[int, Field(ge=1, le=1000)] | None
    sha256: Sha256
    categories: dict[Label, Label] = Field(min_length=1, max_length=10_000)  # prompt -> category
    temperature: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]
    n_context: Annotated[int, Field(ge=1, le=100_000_000)]
    max_tokens: Annotated[int, Field(ge=1, le=1_000_000)]


class RunInfo(Strict):
    """How it was run."""

    seed: Annotated[int, Field(ge=0, le=2**63 - 1)]
    n_repeats_planned: Annotated[int, Field(ge=1, le=1000)]
    n_repeats_done: Annotated[int, Field(ge=0, le=1000)]
    order: Literal["mirrored"] = "mirrored"  # A B, then B A
    warm_up: dict[Label, list[Count]] = Field(default={}, max_length=64)  # arm -> windows seen
    cool_down_s: Seconds = 0.0
    time_limit_s: Seconds
    duration_s: Seconds
    n_sittings: Annotated[int, Field(ge=1, le=10_000)] = 1
    stopped_early: bool = False
    quick: bool = False


class ModelInfo(Strict):
    """A model file, by what is in it."""

    name: Label
    architecture: Label
    file_type: Label | None
    tensor_type: Label
    n_params: Annotated[int, Field(ge=1, le=10**14)]
    n_experts: Count = 0
    n_experts_used: Count = 0
    file_bytes: Bytes
    tensor_bytes: Bytes
    sha256: Sha256


class Analysis(Strict):
    """The break-even of one candidate."""

    candidate: Label
    break_even: BreakEven


class Check(Strict):
    """One test of plausibility; `ok` is None where it cannot be told."""

    name: Label
    ok: bool | None
    text: Reason


class Record(Strict):
    """One result."""

    format: Literal["parlay.result"] = "parlay.result"
    version: Literal[1] = VERSION
    id: Id
    created: Date
    parlay: Label
    licence: Literal["CC-BY-4.0"] = LICENCE
    suite: SuiteInfo
    run: RunInfo
    machine: Machine
    target: ModelInfo | None
    drafter: ModelInfo | None
    arms: list[ArmInfo] = Field(min_length=2, max_length=16)
    comparisons: list[Comparison] = Field(max_length=15)
    costs: Costs | None = None
    analyses: list[Analysis] = Field(default=[], max_length=15)
    warnings: list[Caution] = Field(default=[], max_length=200)
    checks: list[Check] = Field(default=[], max_length=100)
    samples: list[Sample] = Field(min_length=1, max_length=MAX_SAMPLES)

    @property
    def baseline(self) -> ArmInfo:
        return self.arms[0]

    def arm(self, name: str) -> ArmInfo:
        return next(arm for arm in self.arms if arm.name == name)


def identify(fields: dict[str, Any]) -> str:
    """The hash a record is known by: of everything in it but the hash."""
    rest = {name: value for name, value in fields.items() if name != "id"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def dump(model: Strict) -> str:
    """The JSON text of a record or submission, fields in order, defaults left out."""
    kept = model.model_dump(mode="json", exclude_defaults=True)
    always = {n: getattr(model, n) for n in ("format", "version", "licence") if hasattr(model, n)}
    return json.dumps({**always, **kept}, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def parse(data: bytes, what: str = "the file") -> Record:
    """Read a record; refuses anything that is not exactly one."""
    if len(data) > MAX_RECORD_BYTES:
        raise BadResult(
            f"{what} has {len(data):,} bytes; at most {MAX_RECORD_BYTES:,} are accepted"
        )
    try:
        return Record.model_validate_json(data)
    except ValidationError as error:
        raise BadResult(f"{what} is not a result: {explain(error)}") from error


def explain(error: ValidationError) -> str:
    """The first thing wrong, and where, on one line."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))[:80]
    message = "".join(c if c.isprintable() else "?" for c in first["msg"])[:160]
    return f"{where}: {message}" if where else message
