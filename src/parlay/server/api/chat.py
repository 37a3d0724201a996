"""One choice of a chat completion: text becomes content, reasoning and tool calls.

Knows OpenAI's chat format; knows neither the worker nor HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from parlay.engine.sequence import Piece
from parlay.llama.vocabulary import Vocabulary
from parlay.server.api.answer_text import AnswerText, answer_text
from parlay.server.api.job import Event
from parlay.server.api.reply import token_figures
from parlay.server.api.tools import Calls, Said
from parlay.web.schema import ChatRequest

if TYPE_CHECKING:
    from parlay.server.api.planner import Plan
    from parlay.server.lifecycle.service import Service


class ChatChoice:
    """An assistant's message in the making."""

    def __init__(self, vocabulary: Vocabulary, text: AnswerText, *, logprobs: bool) -> None:
        self._vocabulary = vocabulary
        self._text = text
        self._wants_logprobs = logprobs
        self._begun = False
        self._thought: list[str] = []
        self._content: list[str] = []
        self._calls = Calls()
        self._logprobs: list[dict[str, Any]] = []
        self._reason = "stop"
        self.n_thought = 0  # tokens

    @classmethod
    def of(cls, service: Service, plan: Plan, body: ChatRequest) -> ChatChoice:
        split = body.reasoning_format == "auto"
        text = answer_text(plan.style, plan.functions, thinking=plan.thinking, split=split)
        return cls(service.engine.model.vocabulary, text, logprobs=body.logprobs)

    def push(self, event: Event) -> list[dict[str, Any]]:
        deltas = [] if self._begun else [{"role": "assistant", "content": ""}]
        self._begun = True
        for text in self._texts(event.pieces):
            deltas += self._say(self._text.push(text))
        figures = self._figures(event.pieces) if self._wants_logprobs else []
        if figures and not deltas:
            deltas = [{"content": ""}]  # the text is held back, its figures are not
        return _parts(deltas, figures)

    def _texts(self, pieces: tuple[Piece, ...]) -> Iterator[str]:
        """A round's text at once; piece by piece while it thinks, to count what is thought."""
        rest = list(pieces)
        while rest and self._text.thinking:
            self.n_thought += 1
            yield rest.pop(0).text
        if text := "".join([piece.text for piece in rest]):
            yield text

    def finish(self, reason: str) -> list[dict[str, Any]]:
        deltas = self._say(self._text.finish())
        self._reason = "tool_calls" if self._calls and reason == "stop" else reason
        return [*_parts(deltas, []), {"delta": {}, "logprobs": None, "finish_reason": self._reason}]

    def whole(self) -> dict[str, Any]:
        content = "".join(self._content)
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if self._thought:
            message["reasoning_content"] = "".join(self._thought)
        if self._calls:
            message["content"] = content or None
            message["tool_calls"] = self._calls.as_list()
        figures = {"content": self._logprobs, "refusal": None} if self._wants_logprobs else None
        return {"message": message, "logprobs": figures, "finish_reason": self._reason}

    def _say(self, said: Said) -> list[dict[str, Any]]:
        deltas: list[dict[str, Any]] = []
        if said.reasoning:
            self._thought.append(said.reasoning)
            deltas.append({"reasoning_content": said.reasoning})
        if said.content:
            self._content.append(said.content)
            deltas.append({"content": said.content})
        for part in said.calls:
            self._calls.add(part)
            deltas.append({"tool_calls": [part.as_delta()]})
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
