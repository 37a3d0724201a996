"""What can be benchmarked: something that answers prompts and says how long it took.

The protocol only; knows no runtime, no HTTP and no order of runs.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal, Protocol

from parlay.bench.record import ArmInfo
from parlay.bench.suite import Prompt
from parlay.errors import ParlayError
from parlay.reading.speculation import Speculation

# A second request for a warm-up: long drafts hold here, so that wide passes run too.
REPETITIVE = Prompt(
    "warm-up",
    "warm-up",
    ({"role": "user", "content": "Write the numbers one to ten, again and again, forty times."},),
)


class SubjectError(ParlayError):
    """A subject did not answer. The run goes on; the sample says why."""


class TimedOut(SubjectError):
    """A subject took longer than a request may take."""


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


class Subject(Protocol):
    """One arm of a comparison. Whoever opened what it asks closes that."""

    @property
    def info(self) -> ArmInfo:
        """What it is."""

    def warm_up(self, ask: Ask) -> None:
        """Run what will be asked for the first time."""

    def ask(self, ask: Ask) -> Reply:
        """Answer one prompt; raises `SubjectError`."""
