"""What an answer's text means, as it becomes certain: text, thinking, calls, and scores.

Plain data, made by the parser and written by doors; knows neither tokens nor formats.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from parlay.ask import Detail


@dataclass(slots=True)  # not frozen: one is made for every pass of every stream
class Text:
    """What is said."""

    text: str


@dataclass(slots=True)
class Thought:
    """What is thought before it."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    """A call of a function begins."""

    index: int  # among the answer's calls
    id: str
    name: str

    @classmethod
    def of(cls, index: int, name: str) -> CallBegin:
        return cls(index, f"call_{secrets.token_hex(12)}", name)


@dataclass(frozen=True, slots=True)
class CallArguments:
    """Its arguments go on: JSON, or a piece of it."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class Scores:
    """Of the tokens that came with what stands before: where from, and how likely they were."""

    texts: tuple[str, ...]
    details: tuple[Detail, ...]
    at_ms: float


Delta = Text | Thought | CallBegin | CallArguments | Scores


@dataclass(slots=True)
class Said:
    """An answer put together again from its deltas."""

    text: list[str] = field(default_factory=list)
    thought: list[str] = field(default_factory=list)
    calls: list[tuple[CallBegin, list[str]]] = field(default_factory=list)

    def add(self, deltas: Iterable[Delta]) -> None:
        for delta in deltas:
            if isinstance(delta, Text):
                self.text.append(delta.text)
            elif isinstance(delta, Thought):
                self.thought.append(delta.text)
            elif isinstance(delta, CallBegin):
                self.calls.append((delta, []))
            elif isinstance(delta, CallArguments):
                self.calls[delta.index][1].append(delta.text)

    def message(self) -> dict[str, Any]:
        """As an assistant's message of chat completions: fit to be sent back with the next turn."""
        found: dict[str, Any] = {"role": "assistant", "content": "".join(self.text)}
        if self.thought:
            found["reasoning_content"] = "".join(self.thought)
        if self.calls:
            found["content"] = found["content"] or None
            found["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": "".join(arguments) or "{}"},
                }
                for call, arguments in self.calls
            ]
        return found
