"""What a door is: a body, the `Ask` it stands for, and a writer of the answer in its own form.

Knows no door; a door knows its form, and neither HTTP nor who answers.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic import BaseModel

from parlay.ask import Accepted, Ask, Figures, Remark
from parlay.chat.deltas import Delta
from parlay.front.errors import Failure
from parlay.front.schema import ChatRequest
from parlay.front.stored_responses import StoredResponses
from parlay.front.unknown import refuse_unfollowed, unknown_fields


@dataclass(frozen=True, slots=True)
class Finished:
    """How a choice ended, or all of them, and what it took."""

    reason: str  # stop, length, tool_calls
    figures: Figures
    numbers: Mapping[str, Any] = field(default_factory=dict)  # speculation, timings, warnings
    stopped_by: str | None = None  # the stop string that ended it
    n_thought: int = 0  # tokens of thinking

    @property
    def usage(self) -> dict[str, Any]:
        """OpenAI's `usage`: a prompt counts once, however many answers it was given."""
        told = self.figures
        return {
            "prompt_tokens": told.n_prompt,
            "completion_tokens": told.n_generated,
            "total_tokens": told.n_prompt + told.n_generated,
            "prompt_tokens_details": {"cached_tokens": told.n_cached},
            "completion_tokens_details": {
                "reasoning_tokens": self.n_thought,
                "accepted_prediction_tokens": told.n_prediction_accepted,
                "rejected_prediction_tokens": told.n_prediction_rejected,
            },
        }


class Writer(Protocol):
    """One answer in a door's form, in the making. What a stream says is text of events; of an
    answer that is sent whole it is thrown away, and `whole` is the answer."""

    def begin(self, n_cached: int) -> str:
        """The stream's first events; `n_cached` tokens of the prompt had been read before."""

    def delta(self, choice: int, deltas: Sequence[Delta]) -> str:
        """What a pass brought to a choice."""

    def idle(self) -> str:
        """A sign of life while nothing has been said."""

    def end(self, choice: int, how: Finished) -> str:
        """A choice is over."""

    def close(self, how: Finished) -> str:
        """All are; the last events."""

    def whole(self, how: Finished) -> dict[str, Any]:
        """The answer as one object, once all choices have ended."""

    def error(self, failure: Failure) -> str:
        """What ends a stream that broke."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A body, understood in its form."""

    ask: Ask
    stream: bool
    writer: Callable[[Accepted, str], Writer]  # by the model's name
    remarks: tuple[Remark, ...] = ()  # what of the body was left out, and why
    unknown: tuple[str, ...] = ()  # fields that nobody knows
    known: type[BaseModel] = ChatRequest  # whose fields they may be mistaken for
    length: tuple[str, int | None] = ("max_tokens", None)  # the field that limits the answer


@dataclass(frozen=True, slots=True)
class Visit:
    """Who is at the door: the key that was shown, and what was kept for it."""

    key: str
    stored: StoredResponses


class Door(Protocol):
    """One way to ask."""

    @property
    def path(self) -> str: ...

    @property
    def summary(self) -> str: ...

    @property
    def body(self) -> type[BaseModel]: ...

    def ask(self, body: Any, visit: Visit) -> Asked:
        """What a body asks for, or why it is refused."""


def new_id(prefix: str, mark: str = "-") -> str:
    return f"{prefix}{mark}{secrets.token_hex(12)}"


def unknown_of(body: BaseModel) -> tuple[str, ...]:
    """Fields to be told; those that would change the text are refused."""
    refuse_unfollowed(body.model_extra or {})
    return tuple(unknown_fields(body))


def length_of(body: BaseModel, *names: str) -> tuple[str, int | None]:
    """The first field that says how long the answer may be."""
    given = ((name, getattr(body, name)) for name in names)
    return next(((name, n) for name, n in given if n), (names[0], None))
