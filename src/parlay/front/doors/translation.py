"""Formats whose requests are said in chat's words: what such a translation is, and its end.

Knows chat's body and neither of these formats.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ValidationError

from parlay.ask import Remark
from parlay.front import errors
from parlay.front.schema import ChatRequest
from parlay.front.unknown import unknown_fields


@dataclass(frozen=True, slots=True)
class Translated:
    """A format's body in chat's words."""

    chat: dict[str, Any]
    remarks: tuple[Remark, ...] = ()  # what was left out, and why
    unknown: tuple[str, ...] = ()  # fields neither the format nor chat knows
    custom_tools: frozenset[str] = field(default_factory=frozenset)  # they take text, not JSON


def passed_on(body: BaseModel) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Chat's own fields in a format's body (samplers, `speculation`), and the unknown."""
    extra = body.model_extra or {}
    ours = {name: value for name, value in extra.items() if name in _CHAT_FIELDS}
    names = [name for name in unknown_fields(body) if name.partition(".")[0] not in ours]
    return ours, tuple(names)


def chat_of(chat: dict[str, Any]) -> ChatRequest:
    """A format's body as chat's; n is 1: these formats hold one answer."""
    try:
        return ChatRequest.model_validate({**chat, "n": 1})
    except ValidationError as error:
        raise errors.of_validation(error.errors(), sorted(ChatRequest.model_fields)) from None


def without_none(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def as_json(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


_CHAT_FIELDS = frozenset(ChatRequest.model_fields) | {
    field.alias for field in ChatRequest.model_fields.values() if field.alias
}
