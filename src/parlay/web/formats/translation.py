"""What an API format is: a body that becomes a chat body, and a writer that takes chat deltas.

Knows neither format; the server and the gateway hold on to this and to nothing below it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic import BaseModel

from parlay.web.failures import Failure
from parlay.web.schema import ChatRequest
from parlay.web.unknown import Told, unknown_fields


@dataclass(frozen=True, slots=True)
class Translated:
    """A format's body in chat's words."""

    chat: dict[str, Any]
    told: tuple[Told, ...] = ()  # what was left out, and why
    unknown: tuple[str, ...] = ()  # fields neither the format nor chat knows
    custom_tools: frozenset[str] = field(default_factory=frozenset)  # they take text, not JSON


@dataclass(frozen=True, slots=True)
class End:
    """How an answer ended, in chat's words."""

    reason: str  # stop, length, tool_calls
    usage: Mapping[str, Any]
    extra: Mapping[str, Any] = field(default_factory=dict)  # speculation, timings, warnings
    stop: str | None = None  # the stop string that ended it


class Writer(Protocol):
    """One answer in such a format, in the making."""

    id: str

    def begin(self, n_prompt: int, n_cached: int) -> str:
        """The stream's first events."""

    def push(self, part: Mapping[str, Any]) -> str:
        """A streamed choice of chat (`delta`, `logprobs`), as events."""

    def waiting(self) -> str:
        """A sign of life while nothing has been said."""

    def end(self, end: End) -> str:
        """The last events, with the numbers."""

    def whole(self, end: End) -> dict[str, Any]:
        """The answer as one object."""

    def failed(self, failure: Failure) -> str:
        """An error in the middle of the stream."""


def passed_on(body: BaseModel) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Chat's own fields in a format's body (samplers, `speculation`), and the unknown."""
    extra = body.model_extra or {}
    ours = {name: value for name, value in extra.items() if name in _CHAT_FIELDS}
    names = [name for name in unknown_fields(body) if name.partition(".")[0] not in ours]
    return ours, tuple(names)


def without_none(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def as_json(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


_CHAT_FIELDS = (
    frozenset(ChatRequest.model_fields)
    | {field.alias for field in ChatRequest.model_fields.values() if field.alias}
    | {"speculative"}  # `speculation`, until 0.3
)
