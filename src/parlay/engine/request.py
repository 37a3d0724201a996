"""A request: everything one answer needs to know, and nothing that changes while it is made.

Knows no models; text has become tokens already.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from parlay.decoding.constraint import Constraint
from parlay.decoding.reasoning import THINK, Marks
from parlay.decoding.round import Fallback
from parlay.decoding.sampling import Sampling
from parlay.errors import BadRequest
from parlay.option_types import check_options

Mode = Literal["exact", "faithful"]
ContextFull = Literal["stop", "slide"]


@dataclass(frozen=True, slots=True)
class Request:
    """One answer to be made."""

    prompt: tuple[int, ...]
    max_tokens: int = 256
    sampling: Sampling = Sampling()  # noqa: RUF009 - frozen, so sharing it is safe
    stop: tuple[str, ...] = ()
    proposers: tuple[str, ...] | None = None  # proposers it may use; None: all, (): none
    window: int | None = None  # None: the controller's choice
    fallback: Fallback | None = None  # decode plainly, and why
    # Whether the prompt's end opened a part that thinks; None: the answer has no such part.
    thinking: bool | None = None
    marks: Marks = THINK  # around that part
    shown: frozenset[int] = frozenset()  # control tokens whose text belongs to the answer
    mode: Mode | None = None  # None: the engine's
    context_full: ContextFull = "stop"
    logprobs: int | None = None  # None: no figures; n: also the n best tokens
    expected: tuple[int, ...] = ()  # the answer the client expects; drafted from, never believed
    memory: str = ""  # earlier answers that drafts may come from: those of the same name
    owner: str = ""  # cached prompts are reused among requests of one owner only
    # The state of its grammar: of this one answer, which moves it on.
    constraint: Constraint | None = field(default=None, repr=False, compare=False)

    @property
    def plain(self) -> bool:
        """Whether nothing may be drafted for it."""
        return self.fallback is not None or self.proposers == () or self.window == 0

    def __post_init__(self) -> None:
        check_options(self, but=("prompt", "expected", "constraint"))
        if not self.prompt:
            raise BadRequest("the prompt is empty; give at least one token")
        if self.max_tokens < 1:
            raise BadRequest(f"max_tokens is {self.max_tokens}; give at least 1")
        if self.window is not None and self.window < 0:
            raise BadRequest(f"the window is {self.window}; give 0 or more")
        if self.logprobs is not None and self.logprobs < 0:
            raise BadRequest(f"logprobs is {self.logprobs}; give 0 or more")
