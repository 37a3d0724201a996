"""Filling a gap, with llama.cpp's names: editors read `content`.

Knows that format; knows neither HTTP nor who answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from parlay.ask import Ask, Gap
from parlay.chat.deltas import Delta, Text
from parlay.front import streaming as sse
from parlay.front.doors.door import Asked, Finished, Visit, length_of, new_id, unknown_of
from parlay.front.errors import Failure
from parlay.front.schema import InfillRequest

_STOPS = {"length": "limit", "stop": "eos"}


class InfillDoor:
    path = "/infill"
    summary = "Fill a gap, with llama.cpp's names"
    body = InfillRequest

    def ask(self, body: InfillRequest, visit: Visit) -> Asked:
        files = tuple((file.filename, file.text) for file in body.input_extra or ())
        gap = Gap(body.input_prefix, body.input_suffix, files, body.prompt)
        ask = Ask(door="infill", id=new_id("infill"), gap=gap, **body.asked())
        return Asked(
            ask,
            body.stream,
            lambda _accepted, model: InfillWriter(model),
            unknown=unknown_of(body),
            known=InfillRequest,
            length=length_of(body, "n_predict"),
        )


class InfillWriter:
    """One text in the making."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._texts: list[str] = []
        self._end: Finished | None = None

    def begin(self, n_cached: int) -> str:
        return ""

    def idle(self) -> str:
        return sse.WAITING

    def delta(self, choice: int, deltas: Sequence[Delta]) -> str:
        text = "".join([delta.text for delta in deltas if isinstance(delta, Text)])
        self._texts.append(text)
        return sse.data({"index": 0, "content": text, "stop": False}) if text else ""

    def end(self, choice: int, how: Finished) -> str:
        self._end = how
        return ""

    def close(self, how: Finished) -> str:
        return sse.data({"index": 0, "content": "", **self._told(how)})

    def whole(self, how: Finished) -> dict[str, Any]:
        return {"index": 0, "content": "".join(self._texts), **self._told(how)}

    def error(self, failure: Failure) -> str:
        return sse.data(failure.body)

    def _told(self, how: Finished) -> dict[str, Any]:
        ended = self._end or how
        kind = "word" if ended.stopped_by else _STOPS.get(ended.reason, "none")
        return {
            "stop": True,
            "stop_type": kind,
            "stopping_word": ended.stopped_by or "",
            "model": self._model,
            "tokens_predicted": how.figures.n_generated,
            "tokens_evaluated": how.figures.n_prompt,
            "tokens_cached": how.figures.n_cached,
            **how.numbers,
        }
