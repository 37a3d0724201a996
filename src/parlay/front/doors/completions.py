"""OpenAI's plain completions: a text, or several, or tokens; what follows them comes out.

Knows that format; knows neither HTTP nor who answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from parlay.ask import Accepted, Ask, Gap
from parlay.chat.deltas import Delta, Scores, Text
from parlay.errors import BadRequest
from parlay.front.doors.chunks import ChunkWriter, Part
from parlay.front.doors.door import Asked, Visit, length_of, new_id, unknown_of
from parlay.front.schema import CompletionRequest

_MAX_PROMPTS = 128


class CompletionsDoor:
    path = "/v1/completions"
    summary = "Continue a text"
    body = CompletionRequest

    def ask(self, body: CompletionRequest, visit: Visit) -> Asked:
        common = body.asked() | {"logprobs": body.logprobs}
        ask = Ask(door="completions", id=new_id("cmpl"), **_given(body), **common)
        return Asked(
            ask,
            body.stream,
            lambda accepted, model: CompletionWriter(body, ask.id, model, accepted),
            unknown=unknown_of(body),
            known=CompletionRequest,
            length=length_of(body, "max_tokens"),
        )


def _given(body: CompletionRequest) -> dict[str, Any]:
    """A gap, or each prompt, whether one was sent or several."""
    given = body.prompt
    if body.suffix is not None:
        if not isinstance(given, str):
            raise BadRequest("suffix needs a prompt that is text")
        return {"gap": Gap(given, body.suffix)}
    if isinstance(given, str):
        return {"prompts": (given,)}
    if not given:
        raise BadRequest("prompt is empty; send a text or a list of tokens")
    tokens = tuple(token for token in given if isinstance(token, int))
    if tokens:
        return {"prompts": (tokens,)}
    if len(given) > _MAX_PROMPTS:
        raise BadRequest(f"prompt holds {len(given)} prompts; send {_MAX_PROMPTS} at most")
    several = [one for one in given if not isinstance(one, int)]
    return {"prompts": tuple(one if isinstance(one, str) else tuple(one) for one in several)}


class CompletionWriter(ChunkWriter):
    """Texts in the making."""

    kind = _whole_kind = "text_completion"

    def __init__(
        self, body: CompletionRequest, answer_id: str, model: str, accepted: Accepted
    ) -> None:
        super().__init__(body, answer_id, model, accepted)
        self._texts: list[list[str]] = [[] for _ in accepted.n_prompt]
        self._n_chars = [0 for _ in accepted.n_prompt]
        wants = body.logprobs is not None
        self._figures = [_no_figures() for _ in accepted.n_prompt] if wants else None

    def parts(self, choice: int, deltas: Sequence[Delta]) -> list[Part]:
        text = "".join([delta.text for delta in deltas if isinstance(delta, Text)])
        self._texts[choice].append(text)
        scores = [delta for delta in deltas if isinstance(delta, Scores)]
        figures = self._score(choice, scores) if scores and self._figures is not None else None
        if not text and figures is None:
            return []
        return [{"text": text, "logprobs": figures, "finish_reason": None}]

    def last_part(self, choice: int, reason: str) -> Part:
        return {"text": "", "logprobs": None, "finish_reason": reason}

    def whole_choice(self, choice: int, reason: str) -> Part:
        figures = None if self._figures is None else self._figures[choice]
        text = "".join(self._texts[choice])
        return {"text": text, "logprobs": figures, "finish_reason": reason}

    def _score(self, choice: int, given: Sequence[Scores]) -> Part:
        assert self._figures is not None
        found = _no_figures()
        for detail in [detail for scores in given for detail in scores.details]:
            own = detail.score
            if own is None:
                continue
            found["tokens"].append(own.token)
            found["token_logprobs"].append(own.logprob)
            found["top_logprobs"].append({one.token: one.logprob for one in detail.top})
            found["text_offset"].append(self._n_chars[choice])
            self._n_chars[choice] += len(own.token)
        for name, values in found.items():
            self._figures[choice][name] += values
        return found


def _no_figures() -> dict[str, list[Any]]:
    return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
