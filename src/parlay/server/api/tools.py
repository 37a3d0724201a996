"""Tool calls: how a model is asked for them, and how its text becomes calls again.

Knows the two common formats: Hermes and Qwen's <tool_call>{...}</tool_call>, and Llama's bare
JSON with `name` and `parameters` (also after <|python_tag|>). Knows no models.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from parlay.decoding.reasoning import held_back
from parlay.server.api.grammar import bounded

OPEN, CLOSE = "<tool_call>", "</tool_call>"
PYTHON_TAG = "<|python_tag|>"

# For templates that know no tools: the Hermes instruction in our own words.
INSTRUCTION = (
    "You can call these functions. To call one, answer with nothing but\n"
    '<tool_call>\n{"name": FUNCTION, "arguments": OBJECT}\n</tool_call>\n'
    "Functions, as JSON:\n"
)


@dataclass(frozen=True, slots=True)
class Call:
    """One call the model wants made."""

    id: str
    name: str
    arguments: str  # JSON

    def as_dict(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Said:
    """What became certain of an answer that may hold calls."""

    content: str = ""
    calls: tuple[Call, ...] = ()


class ToolText:
    """Feed text in; content and calls come out apart."""

    def __init__(self, names: Sequence[str], *, bare: bool = False) -> None:
        self._names = frozenset(names)
        self._bare = bare  # the whole answer is one bare JSON call
        self._held = ""
        self._inside = False
        self._started = False

    def push(self, text: str) -> Said:
        """Take text; what may still become a call is held back."""
        text, self._held = self._held + text, ""
        if not self._started and self._may_be_bare(text):
            self._held = text
            return Said()
        self._started = True
        return self._scan(text)

    def finish(self) -> Said:
        """The rest: a call, or text after all."""
        held, self._held = self._held, ""
        if not held:
            return Said()
        if self._inside:
            call = self._parse(held)
            return Said(calls=(call,)) if call else Said(content=OPEN + held)
        calls = self._parse_bare(held)
        return Said(calls=calls) if calls else self._scan_all(held)

    def _may_be_bare(self, text: str) -> bool:
        start = text.lstrip()
        if not start:
            return bool(text) or self._bare
        return start[0] in "{[" or start.startswith(PYTHON_TAG) or PYTHON_TAG.startswith(start)

    def _scan(self, text: str) -> Said:
        content, calls = "", []
        while text:
            if self._inside:
                body, closed, text = text.partition(CLOSE)
                if not closed:
                    self._held = body
                    break
                self._inside = False
                call = self._parse(body)
                calls += [call] if call else []
                content += "" if call else OPEN + body + CLOSE
                continue
            before, opened, text = text.partition(OPEN)
            if opened:
                self._inside = True
                content += before.rstrip("\n")
                continue
            keep = held_back(before, OPEN)
            self._held = before[len(before) - keep :]
            content += before[: len(before) - keep]
        return Said(content if content.strip() or not calls else "", tuple(calls))

    def _scan_all(self, text: str) -> Said:
        said = self._scan(text)
        rest, self._held = self._held, ""
        return Said(said.content + (OPEN if self._inside else "") + rest, said.calls)

    def _parse_bare(self, text: str) -> tuple[Call, ...]:
        text = text.strip().removeprefix(PYTHON_TAG)
        parts = [self._parse(part) for part in text.split(";")] if ";" in text else []
        if not parts or None in parts:  # a semicolon inside a string splits wrongly
            parts = [self._parse(text)]
        return tuple(part for part in parts if part is not None)

    def _parse(self, text: str) -> Call | None:
        try:
            found = json.loads(text.strip())
        except ValueError:
            return None
        if isinstance(found, list) and len(found) == 1:
            found = found[0]
        if not isinstance(found, dict) or found.get("name") not in self._names:
            return None
        arguments = found.get("arguments", found.get("parameters", {}))
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        return Call(f"call_{secrets.token_hex(12)}", found["name"], arguments)


def call_schema(tools: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The JSON of one call of any of the tools."""
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool["function"]["name"]},
                "arguments": tool["function"].get("parameters") or {"type": "object"},
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    return calls[0] if len(calls) == 1 else {"anyOf": calls}


def forced_call(tools: Sequence[dict[str, Any]]) -> str:
    """A grammar, in Lark, whose only text is one call in the Hermes format."""
    schema = json.dumps(bounded(call_schema(tools)))
    return f'start: "{OPEN}\\n" call "\\n{CLOSE}"\ncall: %json {schema}\n'


def instruction(tools: Sequence[dict[str, Any]]) -> str:
    """A system message that explains the tools."""
    return INSTRUCTION + "\n".join(json.dumps(t["function"], ensure_ascii=False) for t in tools)
