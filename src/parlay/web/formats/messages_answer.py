"""Anthropic's answers: content blocks and the events that stream them, from chat's deltas.

Knows both formats; where the deltas come from is not its business.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import Any

from parlay.web.failures import Failure
from parlay.web.formats.translation import End
from parlay.web.streaming import dumps, named

_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class MessageWriter:
    """One message in the making: blocks open and close, only one is open at a time."""

    def __init__(self, model: str) -> None:
        self.id = f"msg_{secrets.token_hex(12)}"
        self._model = model
        self._blocks: list[dict[str, Any]] = []
        self._texts: list[str] = []  # of the open block
        self._open: str | None = None  # its type
        self._call = -1  # chat's number of the call it is
        self._head = ""  # of its deltas: the same for each, written once

    def begin(self, n_prompt: int, n_cached: int) -> str:
        usage = {**_input(n_prompt, n_cached), "output_tokens": 0}
        message = {**self._message(), "content": [], "stop_reason": None, "stop_sequence": None}
        return named("message_start", {"message": {**message, "usage": usage}}) + named("ping", {})

    def push(self, part: Mapping[str, Any]) -> str:
        delta = part.get("delta") or {}
        found = ""
        if thought := delta.get("reasoning_content"):
            found += self._grow("thinking", {"thinking": "", "signature": ""}, thought)
        if text := delta.get("content"):
            found += self._grow("text", {"text": ""}, text)
        for call in delta.get("tool_calls") or ():
            found += self._called(call)
        return found

    def waiting(self) -> str:
        return named("ping", {})

    def end(self, end: End) -> str:
        found = self._close()
        delta = self._stop(end)
        extra = {"delta": delta, "usage": _usage(end.usage), **end.extra}
        return found + named("message_delta", extra) + named("message_stop", {})

    def whole(self, end: End) -> dict[str, Any]:
        self._close()
        numbers = {"usage": _usage(end.usage), **end.extra}
        return {**self._message(), "content": self._blocks, **self._stop(end), **numbers}

    def failed(self, failure: Failure) -> str:
        return named("error", failure.anthropic)

    # -- blocks -----------------------------------------------------------------

    def _grow(self, kind: str, empty: dict[str, Any], text: str) -> str:
        found = ""
        if self._open != kind:
            found = self._close() + self._start(kind, empty, _DELTAS[kind])
        self._texts.append(text)
        return f"{found}{self._head}{dumps(text)}}}}}\n\n"

    def _called(self, call: Mapping[str, Any]) -> str:
        """A call's first delta names it; the others go on with its arguments."""
        function = call.get("function") or {}
        index = call.get("index", len(self._blocks))
        found = ""
        if self._open != "tool_use" or self._call != index:
            found = self._close()
            self._call = index
            known = {"id": call.get("id") or f"toolu_{secrets.token_hex(12)}"}
            known |= {"name": function.get("name") or "", "input": {}}
            found += self._start("tool_use", known, _DELTAS["tool_use"])
        text = function.get("arguments") or ""
        self._texts.append(text)
        return f"{found}{self._head}{dumps(text)}}}}}\n\n" if text else found

    def _start(self, kind: str, block: dict[str, Any], delta: tuple[str, str]) -> str:
        index = len(self._blocks)
        self._open, self._texts = kind, []
        self._blocks.append({"type": kind, **block})
        self._head = (
            "event: content_block_delta\ndata: "
            f'{{"type":"content_block_delta","index":{index},'
            f'"delta":{{"type":"{delta[0]}","{delta[1]}":'
        )
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

    def _message(self) -> dict[str, Any]:
        return {"id": self.id, "type": "message", "role": "assistant", "model": self._model}

    def _stop(self, end: End) -> dict[str, Any]:
        reason = "stop_sequence" if end.stop is not None else _REASONS.get(end.reason, "end_turn")
        return {"stop_reason": reason, "stop_sequence": end.stop}


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


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    n_prompt = usage.get("prompt_tokens") or 0
    return {**_input(n_prompt, cached), "output_tokens": usage.get("completion_tokens") or 0}


def _input(n_prompt: int, n_cached: int) -> dict[str, Any]:
    """Anthropic counts what was read from a cache apart."""
    return {
        "input_tokens": n_prompt - n_cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": n_cached,
    }
