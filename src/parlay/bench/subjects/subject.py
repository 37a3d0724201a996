"""What can be benchmarked: something that answers prompts and says how long it took.

The protocol only; knows no runtime, no HTTP and no order of runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from parlay.bench.suite import Prompt
from parlay.errors import ParlayError
from parlay.reading.bounds import Label, Strict
from parlay.reading.speculation import Speculation

Kind = Literal["parlay", "llama.cpp", "vllm", "sglang", "ollama", "lmstudio", "openai"]


class SubjectError(ParlayError):
    """A subject did not answer. The run goes on; the sample says why."""


class TimedOut(SubjectError):
    """A subject took longer than a request may take."""


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


@dataclass(frozen=True, slots=True)
class Ask:
    """One request to be measured."""

    prompt: Prompt
    max_tokens: int
    temperature: float
    seed: int
    time_limit_s: float


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back, with the client's times and whatever the subject told."""

    text: str
    n_tokens: int
    first_token_s: float
    decode_s: float
    wall_s: float
    n_first: int = 1  # tokens that came with the first one
    counted: Literal["usage", "chunks"] = "usage"
    n_prompt: int | None = None
    server_decode_s: float | None = None
    finish_reason: str | None = None
    speculation: Speculation | None = None

    @property
    def text_sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token of a plain answer, and what else could have stood there: (text, logprob)."""

    text: str
    logprob: float
    top: tuple[tuple[str, float], ...]


class Subject(Protocol):
    """One arm of a comparison."""

    @property
    def info(self) -> ArmInfo:
        """What it is."""

    def warm_up(self, ask: Ask) -> list[int]:
        """Run every batch shape it can; returns the draft lengths that were seen."""

    def ask(self, ask: Ask) -> Reply:
        """Answer one prompt; raises `SubjectError`."""

    def score(self, ask: Ask) -> Sequence[ScoredToken]:
        """The answer again, token by token with alternatives; empty if it cannot tell."""

    def close(self) -> None:
        """Let go of it."""
