"""A result, version 1: what one run measured, raw samples included, and everything said of it.

Plain data with bounds; knows no subject and computes nothing. Holds no name, path or address.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationError

from parlay.bench.statistics import Scope, Verdict, verdict
from parlay.errors import ParlayError
from parlay.reading.bounds import Count, Finite, Label, Reason, Seconds, Sha256, Strict
from parlay.reading.speculation import Speculation

VERSION: Final = 1
LICENCE: Final = "CC-BY-4.0"
MAX_RECORD_BYTES: Final = 4_000_000
MAX_ROWS: Final = 20_000

Id = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
Date = Annotated[str, Field(pattern=r"^20\d\d-[01]\d-[0-3]\d$")]
Bytes = Annotated[int, Field(ge=0, le=1 << 60)]
BytesPerSecond = Annotated[float, Field(gt=0, le=1e15, allow_inf_nan=False)]
Ratio = Annotated[Finite, Field(gt=0, le=1e6)]
Share = Annotated[Finite, Field(ge=0, le=1)]
Reading = Annotated[Finite, Field(ge=-100, le=100_000)]

Kind = Literal["parlay", "llama.cpp", "vllm", "sglang", "ollama", "lmstudio", "openai"]
Clock = Literal["decode", "server", "wall"]  # the same for both sides of a pair
Outcome = Literal["ok", "timeout", "error"]
WarningKind = Literal[
    "stall", "drift", "unstable", "few pairs", "failures", "no drafts", "remembers", "token count",
    "load", "builds",
]  # fmt: skip


class BadResult(ParlayError):
    """A file is not a result, or not one that can be believed."""


# -- what was measured ------------------------------------------------------------------------


class Readings(Strict):
    """The machine at the moment of a sample, as far as it tells."""

    load_1min: Reading | None = None
    cpu_mhz: Reading | None = None
    cpu_celsius: Reading | None = None
    gpu_mhz: Reading | None = None
    gpu_celsius: Reading | None = None
    gpu_watts: Reading | None = None


class Sample(Strict):
    """One request of one arm, whatever came of it. Times are the client's, but for
    `server_decode_s`."""

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

    def tokens_per_second(self, clock: Clock) -> float | None:
        """Decoding speed after the first tokens, or over everything; None if it has none."""
        seconds = self.decode_s if clock == "decode" else self.server_decode_s
        n = self.n_tokens - max(1, self.n_first)
        if clock == "wall":
            n, seconds = self.n_tokens, self.wall_s
        return n / seconds if self.outcome == "ok" and n >= 1 and seconds else None


class ArmInfo(Strict):
    """One side of a comparison, without addresses or paths."""

    name: Label
    kind: Kind
    method: Label  # none, ngram, suffix, model, draft-simple ...; "unknown" for a bare endpoint
    speculates: bool | None = None  # None: it does not say
    window: int | None = None  # None: chosen by the subject
    mode: Label | None = None  # exact, faithful
    model: Label | None = None  # as the subject names it
    drafter: Label | None = None
    build: Label | None = None
    device: Label | None = None
    changed: Label | None = None  # the field that sets it apart from the baseline


# -- what follows from it ---------------------------------------------------------------------


class Interval(Strict):
    """A ratio with its 95 % interval; above 1 the candidate is better."""

    ratio: Ratio
    low: Ratio
    high: Ratio
    n_prompts: Count
    n_pairs: Count
    scope: Scope

    @property
    def verdict(self) -> Verdict:
        return verdict(self.ratio, self.low, self.high)

    def __str__(self) -> str:
        """The bounds as they are shown everywhere; *: they hold for these prompts only."""
        mark = "" if self.scope == "tasks" else "*"
        wide = self.high / self.low > 1e6
        return "unknown" if wide else f"{self.low:.2f} to {self.high:.2f}{mark}"


class Acceptance(Strict):
    """What became of the drafts, by the definitions of docs/explanation/architecture.md."""

    generated: Count
    counts: Speculation
    token_acceptance: Share
    sequence_acceptance: Share | None
    draft_share: Share
    acceptance_length: Annotated[Finite, Field(ge=0, le=1000)]
    by_position: list[Share]  # P(accepted | those before it were)


class CategoryResult(Strict):
    """The speed-up over the prompts of one category."""

    category: Label
    speedup: Interval
    verdict: Verdict
    token_acceptance: Share | None
    acceptance_length: Annotated[Finite, Field(ge=0, le=1000)] | None


class Identity(Strict):
    """How many prompts gave the same text in every pair, and which did not."""

    n_identical: Count
    n_compared: Count
    baseline_repeats_itself: bool  # if not, differences say nothing about speculation
    differing: list[Label] = Field(default=[], max_length=MAX_ROWS)


class Failure(Strict):
    """A request that gave no figure, or gave one that cannot be used."""

    prompt: Label
    arm: Label
    repeat: Count
    outcome: Literal["timeout", "error", "too short"]
    reason: Reason


class Comparison(Strict):
    """One candidate against the baseline."""

    baseline: Label
    candidate: Label
    clock: Clock
    verdict: Verdict | Literal["no result"]
    speedup: Interval | None
    wall: Interval | None  # of the whole request: prompt and answer
    first_token: Interval | None
    baseline_tokens_per_second: Ratio | None
    candidate_tokens_per_second: Ratio | None
    by_category: list[CategoryResult] = Field(max_length=200)
    acceptance: Acceptance | None
    identity: Identity
    failures: list[Failure] = Field(max_length=MAX_ROWS)


class Caution(Strict):
    """One thing a reader should know before believing the figures."""

    kind: WarningKind
    arm: Label | None = None
    text: Reason

    def __str__(self) -> str:
        return f"{self.arm}: {self.text}" if self.arm else self.text


class Check(Strict):
    """One test of plausibility; `ok` is None where it cannot be told."""

    name: Label
    ok: bool | None
    text: Reason


# -- what it was measured on ------------------------------------------------------------------


class Gpu(Strict):
    """A card that llama.cpp computes on."""

    name: Label
    memory_bytes: Bytes
    # From its memory clock and bus width: the maker's figure, not a measurement.
    nominal_bandwidth: BytesPerSecond | None = None


class Machine(Strict):
    """Enough to compare with another machine; nothing that names it or its owner."""

    cpu: Label
    n_cores: Annotated[int, Field(ge=1, le=100_000)]
    n_threads: Annotated[int, Field(ge=1, le=100_000)]  # that llama.cpp uses
    memory_bytes: Bytes
    memory_bandwidth: BytesPerSecond  # measured, reading
    cache_bytes: Bytes | None
    gpus: list[Gpu] = Field(default=[], max_length=64)
    os: Label
    driver: Label | None = None
    python: Label
    llama_cpp: Label

    @property
    def hardware(self) -> str:
        return ", ".join(gpu.name for gpu in self.gpus) or self.cpu


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
    time_limit_s: Seconds
    duration_s: Seconds
    n_sittings: Annotated[int, Field(ge=1, le=10_000)] = 1
    stopped_early: bool = False
    quick: bool = False


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
    warnings: list[Caution] = Field(default=[], max_length=200)
    checks: list[Check] = Field(default=[], max_length=100)
    samples: list[Sample] = Field(min_length=1, max_length=MAX_ROWS)

    @property
    def baseline(self) -> ArmInfo:
        return self.arms[0]

    @property
    def title(self) -> str:
        model = self.target.name if self.target else (self.baseline.model or "a server")
        return f"{model} on {self.machine.hardware}"

    def arm(self, name: str) -> ArmInfo:
        return next(arm for arm in self.arms if arm.name == name)


# -- as a file --------------------------------------------------------------------------------


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
