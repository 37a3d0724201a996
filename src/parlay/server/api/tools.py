"""Tool calls: what a client is told of one, and how a model is asked for them in words.

Knows no form and no model; forms are in `tool_formats`, reading them in `tool_text`.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parlay.server.api.schema_place import followed

# For templates that know no tools: the Hermes instruction in our own words.
INSTRUCTION = (
    "You can call these functions. To call one, answer with nothing but\n"
    '<tool_call>\n{"name": FUNCTION, "arguments": OBJECT}\n</tool_call>\n'
    "Functions, as JSON:\n"
)


@dataclass(frozen=True, slots=True)
class ToolFunction:
    """A function the model may call."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)  # a JSON schema
    strict: bool = False

    def argument(self, key: str) -> Any:
        """An argument's schema, behind a reference if it has one; None where there is none."""
        known = self.parameters.get("properties")
        found = known.get(key) if isinstance(known, Mapping) else None
        return followed(found, self.parameters)

    def takes_text(self, key: str) -> bool:
        """Whether an argument is a text, and not JSON."""
        kind = self.argument(key)
        if not isinstance(kind, Mapping):
            return False
        return kind.get("type") == "string" or all(
            isinstance(v, str) for v in kind.get("enum", [0])
        )


@dataclass(frozen=True, slots=True)
class CallPart:
    """A call begins, or goes on: the first part has the name, the others arguments only."""

    index: int
    arguments: str = ""  # JSON, or a piece of it
    name: str | None = None
    id: str | None = None

    @classmethod
    def begin(cls, index: int, name: str, arguments: str = "") -> CallPart:
        return cls(index, arguments, name, f"call_{secrets.token_hex(12)}")

    def as_delta(self) -> dict[str, Any]:
        function: dict[str, Any] = {"arguments": self.arguments}
        if self.name is None:
            return {"index": self.index, "function": function}
        whole = {"name": self.name, **function}
        return {"index": self.index, "id": self.id, "type": "function", "function": whole}


@dataclass(frozen=True, slots=True)
class Said:
    """What became certain of an answer."""

    content: str = ""
    calls: tuple[CallPart, ...] = ()
    reasoning: str = ""


class Calls:
    """The calls of an answer, put together from their parts."""

    def __init__(self) -> None:
        self._heads: list[CallPart] = []
        self._texts: list[list[str]] = []

    def __bool__(self) -> bool:
        return bool(self._heads)

    def add(self, part: CallPart) -> None:
        if part.name is not None:
            self._heads.append(part)
            self._texts.append([])
        self._texts[part.index].append(part.arguments)

    def as_list(self) -> list[dict[str, Any]]:
        return [
            {
                "id": head.id,
                "type": "function",
                "function": {"name": head.name, "arguments": "".join(texts) or "{}"},
            }
            for head, texts in zip(self._heads, self._texts, strict=True)
        ]


def instruction(tools: Sequence[dict[str, Any]]) -> str:
    """A system message that explains the tools."""
    return INSTRUCTION + "\n".join(json.dumps(t["function"], ensure_ascii=False) for t in tools)


def spelled(message: dict[str, Any]) -> dict[str, Any]:
    """A turn with its calls in its text, as the instruction asks for them."""
    calls = [call["function"] for call in message.get("tool_calls", ())]
    if not calls:
        return message
    texts = [
        json.dumps({"name": call["name"], "arguments": call["arguments"]}, ensure_ascii=False)
        for call in calls
    ]
    parts = [message["content"], *(f"<tool_call>\n{text}\n</tool_call>" for text in texts)]
    return {"role": message["role"], "content": "\n".join(part for part in parts if part)}
