"""A remote answer's chunks become pieces of text, as an engine of our own would say them.

Servers tell thinking and calls apart from what is said; here both stand in the text again, between
marks of Unicode's private range that no model writes, so that one parser reads all backends.
Knows OpenAI's chunks; knows no connections and no clients.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal

from parlay.ask import CallForm, Detail, Marks, Pieces, Score
from parlay.reading import answers

THINKING = Marks(open="\ue000", close="\ue001")
CALLS = CallForm(name="remote", kind="json", open="\ue002", close="\ue003")
_OURS = dict.fromkeys(range(0xE000, 0xE004))  # taken out of what a server says


@dataclass
class _Call:
    name: str = ""
    arguments: list[str] = field(default_factory=list)


class Speaker:
    """One choice of an answer, as it comes."""

    def __init__(self, choice: int) -> None:
        self._choice = choice
        self._thinking = False
        self._spoke = False  # something but thinking: what is thought later stands in the text
        self._calls: dict[int, _Call] = {}
        self.reason: Literal["stop", "length"] | None = None  # how it ended

    def push(self, choice: dict[str, Any], at_ms: float) -> Pieces | None:
        """What one streamed choice says; None where it says nothing yet."""
        delta = answers.mapping(choice.get("delta"))
        thought = answers.string(delta.get("reasoning_content") or delta.get("reasoning")) or ""
        text = answers.string(delta.get("content") if delta else choice.get("text")) or ""
        said = self._thought(thought) + self._content(text)
        for call in answers.listed(delta.get("tool_calls")):
            self._take_call(answers.mapping(call))
        if ended := answers.string(choice.get("finish_reason")):
            self.reason = "length" if ended == "length" else "stop"
            said += self._content("", over=True) + "".join(map(_written, self._calls.values()))
            self._calls.clear()
        details = tuple(_details(answers.mapping(choice.get("logprobs"))))
        if not said and not details:
            return None
        n = max(1, len(details))
        texts = (said, *[""] * (n - 1))  # one server's chunk may be many tokens
        return Pieces(self._choice, texts, n, at_ms, details)

    def _thought(self, text: str) -> str:
        if not text or self._spoke:
            return text.translate(_OURS)
        begins, self._thinking = not self._thinking, True
        return (THINKING.open if begins else "") + text.translate(_OURS)

    def _content(self, text: str, *, over: bool = False) -> str:
        if not text and not (over or self._calls):
            return ""
        ends, self._thinking = self._thinking, False
        self._spoke = True
        return (THINKING.close if ends else "") + text.translate(_OURS)

    def _take_call(self, part: dict[str, Any]) -> None:
        """Parts of a call come one after the other, told apart by their index."""
        index = answers.count(part.get("index")) or 0
        if len(self._calls) > 128:
            return
        call = self._calls.setdefault(index, _Call())
        function = answers.mapping(part.get("function"))
        call.name = call.name or answers.string(function.get("name")) or ""
        arguments = function.get("arguments")
        if isinstance(arguments, dict):
            arguments = json.dumps(arguments, ensure_ascii=False)
        call.arguments.append(answers.string(arguments) or "")


def _written(call: _Call) -> str:
    arguments = answers.object_of("".join(call.arguments) or "{}") or {}
    written = json.dumps({"name": call.name, "arguments": arguments}, ensure_ascii=False)
    return CALLS.open + written.translate(_OURS) + CALLS.close


def _details(logprobs: dict[str, Any]) -> list[Detail]:
    """Of chat's form, or of plain completions'."""
    rows = answers.listed(logprobs.get("content"))
    if rows:
        return [_detail(answers.mapping(row)) for row in rows]
    tokens = answers.listed(logprobs.get("tokens"))
    scores = answers.listed(logprobs.get("token_logprobs"))
    tops = [*answers.listed(logprobs.get("top_logprobs")), *[None] * len(tokens)]
    found = []
    for token, score, top in zip(tokens, scores, tops, strict=False):
        likeliest = [
            {"token": name, "logprob": value} for name, value in answers.mapping(top).items()
        ]
        row = {"token": token, "logprob": score, "top_logprobs": likeliest}
        found.append(_detail(row))
    return found


def _detail(row: dict[str, Any]) -> Detail:
    top = [answers.mapping(one) for one in answers.listed(row.get("top_logprobs"))]
    return Detail(score=_score(row), top=tuple(_score(one) for one in top))


def _score(row: dict[str, Any]) -> Score:
    token, value = str(row.get("token", ""))[:1000], row.get("logprob")
    number = isinstance(value, int | float) and not isinstance(value, bool)
    raw = answers.listed(row.get("bytes"))
    known = raw and all(isinstance(byte, int) and 0 <= byte < 256 for byte in raw)
    return Score(
        token,
        float(value) if number else -9999.0,  # type: ignore[arg-type]
        bytes(raw) if known else token.encode("utf-8", "replace"),
    )
