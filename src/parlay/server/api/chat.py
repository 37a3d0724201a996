"""One choice of a chat completion: text becomes content, reasoning and tool calls.

Knows OpenAI's chat format; knows neither the worker nor HTTP.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from parlay.decoding.reasoning import Reasoning
from parlay.llama.vocabulary import Vocabulary
from parlay.runtime.sequence import Piece
from parlay.server.api.job import Event
from parlay.server.api.reply import token_figures
from parlay.server.api.tools import Call, Said, ToolText
from parlay.web.schema import ChatRequest

if TYPE_CHECKING:
    from parlay.server.api.planner import Plan
    from parlay.server.lifecycle.service import Service


class ChatChoice:
    """An assistant's message in the making."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        thinking: bool,
        split_reasoning: bool,
        tool_names: tuple[str, ...],
        logprobs: bool,
    ) -> None:
        self._vocabulary = vocabulary
        self._reasoning = Reasoning(thinking=thinking) if split_reasoning else None
        self._tools = ToolText(tool_names) if tool_names else None
        self._wants_logprobs = logprobs
        self._begun = False
        self._thought: list[str] = []
        self._content: list[str] = []
        self._calls: list[Call] = []
        self._logprobs: list[dict[str, Any]] = []
        self._reason = "stop"

    @classmethod
    def of(cls, service: Service, plan: Plan, body: ChatRequest) -> ChatChoice:
        return cls(
            service.engine.model.vocabulary,
            thinking=plan.thinking,
            split_reasoning=body.reasoning_format == "auto",
            tool_names=plan.tool_names,
            logprobs=body.logprobs,
        )

    def push(self, event: Event) -> list[dict[str, Any]]:
        deltas = [] if self._begun else [{"role": "assistant", "content": ""}]
        self._begun = True
        text = "".join(piece.text for piece in event.pieces)
        if text:
            deltas += self._split(text)
        figures = self._figures(event.pieces) if self._wants_logprobs else []
        if figures and not deltas:
            deltas = [{"content": ""}]  # the text is held back, its figures are not
        return _parts(deltas, figures)

    def finish(self, reason: str) -> list[dict[str, Any]]:
        deltas = self._flush()
        self._reason = "tool_calls" if self._calls and reason == "stop" else reason
        return [*_parts(deltas, []), {"delta": {}, "logprobs": None, "finish_reason": self._reason}]

    def whole(self) -> dict[str, Any]:
        content = "".join(self._content)
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if self._thought:
            message["reasoning_content"] = "".join(self._thought)
        if self._calls:
            message["content"] = content or None
            message["tool_calls"] = [call.as_dict() for call in self._calls]
        figures = {"content": self._logprobs, "refusal": None} if self._wants_logprobs else None
        return {"message": message, "logprobs": figures, "finish_reason": self._reason}

    # -- text -----------------------------------------------------------------

    def _split(self, text: str) -> list[dict[str, Any]]:
        deltas: list[dict[str, Any]] = []
        if self._reasoning is not None:
            split = self._reasoning.push(text)
            deltas += self._think(split.reasoning)
            text = split.content
        if text:
            deltas += self._say(self._tools.push(text) if self._tools else Said(text))
        return deltas

    def _flush(self) -> list[dict[str, Any]]:
        deltas: list[dict[str, Any]] = []
        if self._reasoning is not None:
            rest = self._reasoning.finish()
            deltas += self._think(rest.reasoning)
            if rest.content:
                deltas += self._say(
                    self._tools.push(rest.content) if self._tools else Said(rest.content)
                )
        if self._tools is not None:
            deltas += self._say(self._tools.finish())
        return deltas

    def _think(self, text: str) -> list[dict[str, Any]]:
        if not text:
            return []
        self._thought.append(text)
        return [{"reasoning_content": text}]

    def _say(self, said: Said) -> list[dict[str, Any]]:
        deltas: list[dict[str, Any]] = []
        if said.content:
            self._content.append(said.content)
            deltas.append({"content": said.content})
        for call in said.calls:
            deltas.append({"tool_calls": [{"index": len(self._calls), **call.as_dict()}]})
            self._calls.append(call)
        return deltas

    # -- figures --------------------------------------------------------------

    def _figures(self, pieces: tuple[Piece, ...]) -> list[dict[str, Any]]:
        found = []
        for piece in pieces:
            scored = None if piece.token in self._vocabulary.ends else piece.logprob
            if scored is not None:
                own = token_figures(self._vocabulary, scored.token, scored.logprob)
                top = [token_figures(self._vocabulary, t, lp) for t, lp in scored.top]
                found.append({**own, "top_logprobs": top})
        self._logprobs += found
        return found


def _parts(deltas: list[dict[str, Any]], figures: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Streamed choices; the figures go with the last one."""
    parts: list[dict[str, Any]] = [
        {"delta": delta, "logprobs": None, "finish_reason": None} for delta in deltas
    ]
    if figures and parts:
        parts[-1]["logprobs"] = {"content": figures, "refusal": None}
    return parts
