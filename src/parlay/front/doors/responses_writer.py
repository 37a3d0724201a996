"""OpenAI's Responses: output items and the events that stream them, from deltas.

Knows both formats; where the deltas come from is not its business.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from parlay.chat.deltas import CallArguments, CallBegin, Delta, Scores, Text, Thought
from parlay.front.doors.chunks import scored
from parlay.front.doors.door import Finished
from parlay.front.errors import Failure
from parlay.front.streaming import WAITING, named


class ResponseWriter:
    """One response in the making: items open and close, only one is open at a time."""

    def __init__(
        self,
        base: Mapping[str, Any],
        custom: frozenset[str],
        keep: Callable[[ResponseWriter], None],
    ) -> None:
        """`base`: what the response repeats of its request; `custom`: tools that take free text;
        `keep`: called once the response is whole."""
        self.output: list[dict[str, Any]] = []
        self.response: dict[str, Any] = {}  # all of it, once it has ended
        self._custom = custom
        self._keep = keep
        self._base = {
            **base,
            "object": "response",
            "created_at": int(time.time()),
            "error": None,
            "incomplete_details": None,
            "background": False,
        }
        self._reason = "stop"
        self._n_events = 0
        self._open: str | None = None  # the open item's type
        self._texts: list[str] = []
        self._figures: list[dict[str, Any]] = []

    def begin(self, n_cached: int) -> str:
        response = {**self._base, "status": "in_progress", "output": [], "usage": None}
        started = self._event("response.created", {"response": response})
        return started + self._event("response.in_progress", {"response": response})

    def delta(self, choice: int, deltas: Sequence[Delta]) -> str:
        found, figures = "", [one for d in deltas if isinstance(d, Scores) for one in scored(d)]
        for delta in deltas:
            if isinstance(delta, Thought):
                found += self._grow("reasoning", delta.text, [])
            elif isinstance(delta, Text):
                found += self._grow("message", delta.text, figures)
                figures = []
            elif isinstance(delta, CallBegin):
                found += self._close() + self._start_call(delta)
            elif isinstance(delta, CallArguments):
                found += self._arguments(delta.text)
        # The text may be held back, its figures are not.
        return found + (self._grow("message", "", figures) if figures else "")

    def idle(self) -> str:
        return WAITING

    def end(self, choice: int, how: Finished) -> str:
        self._reason = how.reason
        return self._close("incomplete" if how.reason == "length" else "completed")

    def close(self, how: Finished) -> str:
        kind = "response.incomplete" if self._reason == "length" else "response.completed"
        return self._event(kind, {"response": self.whole(how)})

    def whole(self, how: Finished) -> dict[str, Any]:
        cut = self._reason == "length"
        self.response = {
            **self._base,
            "status": "incomplete" if cut else "completed",
            "output": self.output,
            "usage": _usage(how),
            **how.numbers,
        }
        if cut:
            self.response["incomplete_details"] = {"reason": "max_output_tokens"}
        self._keep(self)
        return self.response

    def error(self, failure: Failure) -> str:
        error = {"code": failure.code or "server_error", "message": failure.message}
        response = {**self._base, "status": "failed", "error": error, "output": self.output}
        return self._event("response.failed", {"response": {**response, "usage": None}})

    def message(self) -> dict[str, Any]:
        """What was said, as chat's message: for a response that goes on from here."""
        found: dict[str, Any] = {"role": "assistant"}
        for item in self.output:
            if item["type"] == "message":
                found["content"] = item["content"][0]["text"]
            elif item["type"] != "reasoning":
                arguments = item.get("arguments") or json.dumps({"input": item.get("input")})
                function = {"name": item["name"], "arguments": arguments}
                call = {"id": item["call_id"], "type": "function", "function": function}
                found.setdefault("tool_calls", []).append(call)
        return found

    # -- items --------------------------------------------------------------------

    def _grow(self, kind: str, text: str, figures: list[dict[str, Any]]) -> str:
        found = "" if self._open == kind else self._close() + self._start_text(kind)
        self._texts.append(text)
        self._figures += figures
        delta: dict[str, Any] = {"content_index": 0, "delta": text}
        if kind == "reasoning":
            return found + self._event(f"{_THOUGHT}.delta", self._placed(delta))
        told = self._placed({**delta, "logprobs": figures})
        return found + self._event("response.output_text.delta", told)

    def _start_text(self, kind: str) -> str:
        prefix = "msg" if kind == "message" else "rs"
        item: dict[str, Any] = {"id": f"{prefix}_{secrets.token_hex(12)}", "type": kind}
        own: dict[str, Any] = {"role": "assistant"} if kind == "message" else {"summary": []}
        item |= {**own, "status": "in_progress", "content": []}
        found = self._add(kind, item)
        part = {"content_index": 0, "part": _part(kind, "", [])}
        return found + self._event("response.content_part.added", self._placed(part))

    def _start_call(self, call: CallBegin) -> str:
        free = call.name in self._custom
        kind = "custom_tool_call" if free else "function_call"
        item = {
            "id": f"{'ctc' if free else 'fc'}_{secrets.token_hex(12)}",
            "type": kind,
            "status": "in_progress",
            "call_id": call.id,
            "name": call.name,
            "input" if free else "arguments": "",
        }
        return self._add(kind, item)

    def _arguments(self, text: str) -> str:
        """A tool that takes free text is told at its end: what comes here is JSON around it."""
        self._texts.append(text)
        if self._open == "custom_tool_call":
            return ""
        kind = "response.function_call_arguments.delta"
        return self._event(kind, self._placed({"delta": text}))

    def _add(self, kind: str, item: dict[str, Any]) -> str:
        self._open, self._texts, self._figures = kind, [], []
        self.output.append(item)
        return self._event("response.output_item.added", {**self._at(), "item": item})

    def _close(self, status: str = "completed") -> str:
        if self._open is None:
            return ""
        kind, item, text = self._open, self.output[-1], "".join(self._texts)
        self._open = None
        item["status"] = status
        found = self._end_call(item, text) if kind.endswith("_call") else self._end_text(item, text)
        return found + self._event("response.output_item.done", {**self._at(), "item": item})

    def _end_text(self, item: dict[str, Any], text: str) -> str:
        part = _part(item["type"], text, self._figures)
        item["content"] = [part]
        done: dict[str, Any] = {"content_index": 0, "text": text}
        kind = _THOUGHT + ".done"
        if item["type"] == "message":
            kind = "response.output_text.done"
            done["logprobs"] = self._figures
        found = self._event(kind, self._placed(done))
        part_done = {"content_index": 0, "part": part}
        return found + self._event("response.content_part.done", self._placed(part_done))

    def _end_call(self, item: dict[str, Any], text: str) -> str:
        if item["type"] == "function_call":
            item["arguments"] = text or "{}"
            done = {"arguments": item["arguments"], "name": item["name"]}
            return self._event("response.function_call_arguments.done", self._placed(done))
        item["input"] = _input(text)
        kind = "response.custom_tool_call_input"
        delta = self._event(f"{kind}.delta", self._placed({"delta": item["input"]}))
        return delta + self._event(f"{kind}.done", self._placed({"input": item["input"]}))

    # -- events -------------------------------------------------------------------

    def _event(self, kind: str, data: dict[str, Any]) -> str:
        self._n_events += 1
        return named(kind, {"sequence_number": self._n_events - 1, **data})

    def _at(self) -> dict[str, Any]:
        return {"output_index": len(self.output) - 1}

    def _placed(self, data: dict[str, Any]) -> dict[str, Any]:
        return {"item_id": self.output[-1]["id"], **self._at(), **data}


_THOUGHT = "response.reasoning_text"


def _part(kind: str, text: str, figures: list[dict[str, Any]]) -> dict[str, Any]:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": figures}


def _input(text: str) -> str:
    """The free text a call's JSON holds; of a call that was cut short, as much as there is."""
    try:
        return str(json.loads(text)["input"])
    except (ValueError, KeyError, TypeError):
        return text


def _usage(how: Finished) -> dict[str, Any]:
    told = how.figures
    return {
        "input_tokens": told.n_prompt,
        "input_tokens_details": {"cached_tokens": told.n_cached},
        "output_tokens": told.n_generated,
        "output_tokens_details": {"reasoning_tokens": how.n_thought},
        "total_tokens": told.n_prompt + told.n_generated,
    }
