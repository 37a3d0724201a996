"""Anthropic's answers: content blocks and the events that stream them, from deltas.

Knows both formats; where the deltas come from is not its business.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from parlay.ask import Figures
from parlay.chat.deltas import CallArguments, CallBegin, Delta, Text, Thought
from parlay.front.doors.door import Finished
from parlay.front.errors import Failure
from parlay.front.streaming import named

_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class MessageWriter:
    """One message in the making: blocks open and close, only one is open at a time."""

    def __init__(self, answer_id: str, model: str, n_prompt: int) -> None:
        self._message = {"id": answer_id, "type": "message", "role": "assistant"}
        self._message["model"] = model
        self._n_prompt = n_prompt
        self._stop: dict[str, Any] = {"stop_reason": None, "stop_sequence": None}
        self._blocks: list[dict[str, Any]] = []
        self._texts: list[str] = []  # of the open block
        self._open: str | None = None  # its type

    def begin(self, n_cached: int) -> str:
        usage = {**_input(self._n_prompt, n_cached), "output_tokens": 0}
        message = {**self._message, "content": [], **self._stop, "usage": usage}
        return named("message_start", {"message": message}) + named("ping", {})

    def delta(self, choice: int, deltas: Sequence[Delta]) -> str:
        found = ""
        for delta in deltas:
            if isinstance(delta, Thought):
                found += self._grow("thinking", {"thinking": "", "signature": ""}, delta.text)
            elif isinstance(delta, Text):
                found += self._grow("text", {"text": ""}, delta.text)
            elif isinstance(delta, CallBegin):
                block = {"id": delta.id, "name": delta.name, "input": {}}
                found += self._close() + self._start("tool_use", block)
            elif isinstance(delta, CallArguments):
                found += self._add(delta.text)
        return found

    def idle(self) -> str:
        return named("ping", {})

    def end(self, choice: int, how: Finished) -> str:
        reason = _REASONS.get(how.reason, "end_turn")
        reason = "stop_sequence" if how.stopped_by is not None else reason
        self._stop = {"stop_reason": reason, "stop_sequence": how.stopped_by}
        return self._close()

    def close(self, how: Finished) -> str:
        told = {"delta": self._stop, "usage": _usage(how.figures), **how.numbers}
        return named("message_delta", told) + named("message_stop", {})

    def whole(self, how: Finished) -> dict[str, Any]:
        told = {"usage": _usage(how.figures), **how.numbers}
        return {**self._message, "content": self._blocks, **self._stop, **told}

    def error(self, failure: Failure) -> str:
        return named("error", failure.anthropic)

    # -- blocks -----------------------------------------------------------------

    def _grow(self, kind: str, empty: dict[str, Any], text: str) -> str:
        found = ""
        if self._open != kind:
            found = self._close() + self._start(kind, empty)
        return found + self._add(text)

    def _add(self, text: str) -> str:
        self._texts.append(text)
        kind, name = _DELTAS[self._open or "text"]
        told = {"index": len(self._blocks) - 1, "delta": {"type": kind, name: text}}
        return named("content_block_delta", told)

    def _start(self, kind: str, block: dict[str, Any]) -> str:
        index = len(self._blocks)
        self._open, self._texts = kind, []
        self._blocks.append({"type": kind, **block})
        return named("content_block_start", {"index": index, "content_block": self._blocks[-1]})

    def _close(self) -> str:
        if self._open is None:
            return ""
        block, text = self._blocks[-1], "".join(self._texts)
        if self._open == "tool_use":
            block["input"] = _object(text)
        else:
            block[self._open] = text
        self._open = None
        return named("content_block_stop", {"index": len(self._blocks) - 1})


_DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}


def _object(text: str) -> dict[str, Any]:
    """A call's input; of a call that was cut short there is none."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _usage(told: Figures) -> dict[str, Any]:
    return {**_input(told.n_prompt, told.n_cached), "output_tokens": told.n_generated}


def _input(n_prompt: int, n_cached: int) -> dict[str, Any]:
    """Anthropic counts what was read from a cache apart."""
    return {
        "input_tokens": n_prompt - n_cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": n_cached,
    }
