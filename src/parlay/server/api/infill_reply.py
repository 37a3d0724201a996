"""The reply to `/infill`, with llama.cpp's names: editors read `content`.

Knows that format; knows neither the worker nor HTTP.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from parlay.server.api.job import Event, Job
from parlay.server.api.planner import Plan
from parlay.server.api.reply import Numbers
from parlay.web import streaming as sse
from parlay.web.failures import Failure

if TYPE_CHECKING:
    from parlay.server.lifecycle.service import Service

_STOPS = {"length": "limit", "stop": "eos"}


class InfillReply:
    """One text in the making."""

    def __init__(self, service: Service, plan: Plan, job: Job) -> None:
        self.id = f"infill-{secrets.token_hex(12)}"
        self._model = service.model_name
        self._numbers = Numbers(plan, job, service.observer.baseline)
        self._job = job
        self._texts: list[str] = []

    def frame(self, event: Event) -> bytes:
        text = self._text(event)
        return sse.frame({"index": 0, "content": text, "stop": False}) if text else b""

    def take(self, event: Event) -> None:
        self._texts.append(self._text(event))

    def waiting(self) -> bytes:
        return sse.WAITING

    def last(self) -> bytes:
        return sse.frame({"index": 0, "content": "", **self._end()})

    def whole(self) -> dict[str, Any]:
        return {"index": 0, "content": "".join(self._texts), **self._end()}

    def failed(self, failure: Failure) -> bytes:
        return sse.frame(failure.body)

    def _text(self, event: Event) -> str:
        if event.last:
            self._numbers.reason(self._job.sequences[0])  # an answer that broke is an error
        return "".join(piece.text for piece in event.pieces)

    def _end(self) -> dict[str, Any]:
        (seq,) = self._job.sequences
        return {
            "stop": True,
            "stop_type": "word" if seq.stopped_by else _STOPS.get(seq.finish_reason or "", "none"),
            "stopping_word": seq.stopped_by or "",
            "model": self._model,
            "tokens_predicted": seq.n_generated,
            "tokens_evaluated": len(seq.request.prompt),
            "tokens_cached": seq.n_reused,
            **self._numbers.of([seq]),
        }
