"""OpenAI's chat completions: a conversation in, a message with content, thinking and calls out.

Knows that format; knows neither HTTP nor who answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from parlay.ask import Accepted, Ask
from parlay.chat.deltas import CallArguments, CallBegin, Delta, Said, Scores, Text, Thought
from parlay.front.doors.chunks import ChunkWriter, Part, scored
from parlay.front.doors.door import Asked, Visit, length_of, new_id, unknown_of
from parlay.front.schema import ChatRequest


class ChatDoor:
    path = "/v1/chat/completions"
    summary = "Answer a conversation"
    body = ChatRequest

    def ask(self, body: ChatRequest, visit: Visit) -> Asked:
        ask = Ask(door="chat", id=new_id("chatcmpl"), **body.asked())
        return Asked(
            ask,
            body.stream,
            lambda accepted, model: ChatWriter(body, ask.id, model, accepted),
            unknown=unknown_of(body),
            length=length_of(body, "max_completion_tokens", "max_tokens"),
        )


class ChatWriter(ChunkWriter):
    """Assistant's messages in the making."""

    kind = "chat.completion.chunk"
    _whole_kind = "chat.completion"

    def __init__(self, body: ChatRequest, answer_id: str, model: str, accepted: Accepted) -> None:
        super().__init__(body, answer_id, model, accepted)
        self._said = [Said() for _ in accepted.n_prompt]
        self._begun = [False for _ in accepted.n_prompt]
        self._scores: list[list[Part]] | None = None
        if body.logprobs:
            self._scores = [[] for _ in accepted.n_prompt]

    def parts(self, choice: int, deltas: Sequence[Delta]) -> list[Part]:
        self._said[choice].add(deltas)
        made = [] if self._begun[choice] else [_part({"role": "assistant", "content": ""})]
        self._begun[choice] = True
        made += [_part(_delta(delta)) for delta in deltas if not isinstance(delta, Scores)]
        if self._scores is not None:
            found = [one for d in deltas if isinstance(d, Scores) for one in scored(d)]
            self._scores[choice] += found
            if found and not made:  # the text is held back, its figures are not
                made = [_part({"content": ""})]
            if found:
                made[-1]["logprobs"] = {"content": found, "refusal": None}
        return made

    def last_part(self, choice: int, reason: str) -> Part:
        return {"delta": {}, "logprobs": None, "finish_reason": reason}

    def whole_choice(self, choice: int, reason: str) -> Part:
        message = {**self._said[choice].message(), "refusal": None}
        figures = None
        if self._scores is not None:
            figures = {"content": self._scores[choice], "refusal": None}
        return {"message": message, "logprobs": figures, "finish_reason": reason}


def _part(delta: dict[str, Any]) -> Part:
    return {"delta": delta, "logprobs": None, "finish_reason": None}


def _delta(delta: Delta) -> dict[str, Any]:
    if isinstance(delta, Text):
        return {"content": delta.text}
    if isinstance(delta, Thought):
        return {"reasoning_content": delta.text}
    if isinstance(delta, CallBegin):
        function = {"name": delta.name, "arguments": ""}
        call = {"index": delta.index, "id": delta.id, "type": "function", "function": function}
        return {"tool_calls": [call]}
    assert isinstance(delta, CallArguments)
    return {"tool_calls": [{"index": delta.index, "function": {"arguments": delta.text}}]}
