"""One choice of a plain completion.

Knows OpenAI's older format; knows neither the worker nor HTTP.
"""

from __future__ import annotations

from typing import Any

from parlay.engine.sequence import Piece
from parlay.llama.vocabulary import Vocabulary
from parlay.server.api.job import Event
from parlay.server.api.reply import token_figures


class CompletionChoice:
    """A text in the making."""

    n_thought = 0

    def __init__(self, vocabulary: Vocabulary, *, logprobs: bool) -> None:
        self._vocabulary = vocabulary
        self._wants_logprobs = logprobs
        self._text: list[str] = []
        self._n_chars = 0
        self._figures = _no_figures()
        self._reason = "stop"

    def push(self, event: Event) -> list[dict[str, Any]]:
        text = "".join(piece.text for piece in event.pieces)
        figures = self._score(event.pieces) if self._wants_logprobs and event.pieces else None
        self._text.append(text)
        if not text and figures is None:
            return []
        return [{"text": text, "logprobs": figures, "finish_reason": None}]

    def finish(self, reason: str) -> list[dict[str, Any]]:
        self._reason = reason
        return [{"text": "", "logprobs": None, "finish_reason": reason}]

    def whole(self) -> dict[str, Any]:
        figures = self._figures if self._wants_logprobs else None
        return {"text": "".join(self._text), "logprobs": figures, "finish_reason": self._reason}

    def _score(self, pieces: tuple[Piece, ...]) -> dict[str, Any]:
        found = _no_figures()
        for piece in pieces:
            scored = None if piece.token in self._vocabulary.ends else piece.logprob
            if scored is None:
                continue
            own = token_figures(self._vocabulary, scored.token, scored.logprob)
            top = {token_figures(self._vocabulary, t, lp)["token"]: lp for t, lp in scored.top}
            found["tokens"].append(own["token"])
            found["token_logprobs"].append(scored.logprob)
            found["top_logprobs"].append(top)
            found["text_offset"].append(self._n_chars)
            self._n_chars += len(own["token"])
        for name, values in found.items():
            self._figures[name] += values
        return found


def _no_figures() -> dict[str, list[Any]]:
    return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
