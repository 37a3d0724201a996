"""The front's own state: who may ask, how many are let in, what was answered, what is wrong.

Knows the deployment and a backend; knows neither doors' forms nor processes.
"""

from __future__ import annotations

import math
import os
import time
from typing import Any, Protocol

import psutil
from fastapi import Request

from parlay.ask import Ask, Backend, Remark
from parlay.deployment import Deployment
from parlay.errors import BadRequest
from parlay.front import errors, limits, metrics
from parlay.front.alerts import Alerts
from parlay.front.answers import Outcome
from parlay.front.doors.door import Asked, Visit
from parlay.front.errors import Failure
from parlay.front.gate import Coming, checked_keys, given_key, settle
from parlay.front.live import LiveFigures
from parlay.front.request_log import RequestLog, timestamp
from parlay.front.stored_responses import StoredResponses

_MAX_RETRY_S = 60


class Answers(Backend, Protocol):
    """A backend as a front needs it."""

    @property
    def n_waiting(self) -> int:
        """Answers that wait outside of the engine."""

    @property
    def n_places(self) -> int:
        """Answers that are made at once; 0 where nobody takes any."""

    async def live(self) -> dict[str, Any]:
        """What it tells of this moment to those who watch."""


class Service:
    """One server; everything here runs on its event loop."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.started = time.time()
        self.draining = False
        self.gave_up = False  # on the answers that were still open when draining ended
        self.alerts = Alerts()
        self.coming = Coming()
        self.metrics = metrics.RequestMetrics()
        self.stored = StoredResponses(0)
        self.live = LiveFigures(lambda: self.backend, self._about, lambda: self.draining)
        self._backend: Answers | None = None
        self._bound = deployment.server.host
        self.n_open = 0  # answers that were let in and have not ended
        self._usual_s = 1.0  # running mean of a request's time, for Retry-After
        self._log: RequestLog | None = None
        self.apply(deployment)

    @property
    def backend(self) -> Answers:
        assert self._backend is not None, "nobody is served before there is a backend"
        return self._backend

    @backend.setter
    def backend(self, backend: Answers) -> None:
        self._backend = backend

    def apply(self, deployment: Deployment) -> None:
        """Take over everything that is the front's: all of it, or nothing."""
        keys = checked_keys(deployment, self._bound)
        log = RequestLog.of(deployment.monitoring)
        # From here on nothing fails.
        self.deployment, self.keys = deployment, keys
        self.stored.size = deployment.server.stored_responses
        self.stored.trim()
        self.alerts.webhook = deployment.monitoring.alert_webhook
        old, self._log = self._log, log
        if old is not None:
            old.close()

    # -- requests -------------------------------------------------------------

    @property
    def model_names(self) -> tuple[str, ...]:
        return self.deployment.model.alias or self.backend.facts.names

    def visit(self, request: Request) -> Visit:
        return Visit(given_key(dict(request.scope["headers"])), self.stored)

    def owner_of(self, key: str) -> str:
        """Whose cached prompts a request may use, by the key it showed."""
        return "" if self.deployment.server.share_prompt_cache else self.keys.owner(key)

    def checked(self, asked: Asked, request: Request) -> tuple[Ask, tuple[Remark, ...]]:
        owner = self.keys.owner(self.visit(request).key)
        return limits.checked(asked, self.deployment, owner, dict(request.headers))

    def choose(self, model: str) -> tuple[Answers, str, tuple[Remark, ...]]:
        names = self.model_names
        return self.backend, model or names[0], limits.known_model(model, names)

    def admit(self, n: int) -> None:
        """Let a request in, or say when to come back."""
        if self.draining:
            raise errors.unavailable("the server is shutting down", "shutting_down")
        settle()  # counted by its answers from here on
        room = self._room
        if n > room:
            raise BadRequest(f"n is {n}; this server holds {room} answers at once")
        if self.n_open + n > room:
            raise self._busy()
        self.n_open += n

    def leave(self, n: int) -> None:
        self.n_open -= n

    def full(self) -> Failure | None:
        """Before a body is read: whether its answer would have a place."""
        return self._busy() if self.n_open + self.coming.n >= self._room else None

    @property
    def _room(self) -> int:
        """Where nobody takes requests they wait, or are told so by the backend."""
        return max(1, self.backend.n_places) + self.deployment.server.queue_size

    def _busy(self) -> Failure:
        n_places = max(1, self.backend.n_places)
        wait = math.ceil(self._usual_s * (self.n_open - n_places + 1) / n_places)
        return errors.busy(min(max(1, wait), _MAX_RETRY_S))

    # -- what was answered ----------------------------------------------------

    def between(self, seconds: float) -> None:
        self.metrics.between.observe(seconds)

    def finished(self, outcome: Outcome) -> None:
        """Count and log one request, before its last byte is sent."""
        figures, left = outcome.figures, outcome.status == errors.LEFT
        if not left:  # how long an answer takes, one that was left does not tell
            self._usual_s += 0.1 * (figures.e2e_s - self._usual_s)
            self.metrics.whole.observe(figures.e2e_s)
        self.metrics.queued.observe(figures.queue_s)
        if figures.ttft_s is not None:
            self.metrics.ttft.observe(figures.ttft_s)
        self.metrics.requests.labels(outcome.ask.door, outcome.status).inc()
        record = _record(outcome)
        # One of our names: what clients make up is no label.
        model, names = outcome.ask.model, self.model_names
        self.live.take({**record, "model": model if model in names else names[0]})
        if self._log is not None:
            texts = outcome.texts
            said = {"prompt": texts[0], "answers": list(texts[1:])} if texts else {}
            self._log.write(record | said)

    def refused(self, path: str, failure: Failure) -> None:
        """Count and log a request that got no answer."""
        endpoint = endpoint_of(path)
        self.metrics.requests.labels(endpoint, failure.status).inc()
        if self._log is not None:
            record = {"endpoint": endpoint, "status": failure.status, "error": failure.code}
            self._log.write({"time": timestamp(), **record})

    # -- what is told ---------------------------------------------------------

    async def figures(self) -> dict[str, Any]:
        """Everything about speculation as one object."""
        found = await self.backend.figures()
        found.pop("gauges", None)
        waiting = found["queue"]["waiting"] + self.backend.n_waiting
        return {
            **found,
            "queue": {**found["queue"], "waiting": waiting},
            "alerts": [alert.as_dict() for alert in self.alerts.active.values()],
            "uptime_s": round(time.time() - self.started, 3),
        }

    async def exposition(self) -> bytes:
        """Prometheus' text; without an engine, what the front counts."""
        found = list(metrics.of_front(self.alerts.n_raised, _process_bytes()))
        try:
            figures = await self.backend.figures()
        except Failure:
            return self.metrics.text(found)
        told = metrics.of_backend(figures, self.backend.n_waiting)
        return self.metrics.text([*found, *told])

    def _about(self) -> dict[str, Any]:
        return {
            "uptime_s": round(time.time() - self.started, 1),
            "model": self.model_names[0],
            "queue": self.deployment.server.queue_size,
            "alerts": [alert.as_dict() for alert in self.alerts.active.values()],
        }

    def close(self) -> None:
        if self._log is not None:
            self._log.close()


_ENDPOINTS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/messages": "messages",
    "/v1/responses": "responses",
    "/infill": "infill",
}


def endpoint_of(path: str) -> str:
    """A route's name in lines and metrics: never what a client made up."""
    return _ENDPOINTS.get(path, "other")


def _process_bytes() -> int:
    return int(psutil.Process(os.getpid()).memory_info().rss)


def _record(outcome: Outcome) -> dict[str, Any]:
    """A line of the request log, without texts."""
    figures, accepted = outcome.figures, outcome.accepted
    found = {
        "time": timestamp(),
        "request_id": outcome.ask.id,
        "endpoint": outcome.ask.door,
        "finish_reason": outcome.finish_reason or "cancelled",
        "prompt_tokens": figures.n_prompt or (accepted.n_prompt[0] if accepted else 0),
        "reused_tokens": figures.n_cached,
        "tokens_per_second": figures.timings.get("predicted_per_second", 0.0),
        **figures.speculation,
        "status": outcome.status,
        "stream": outcome.stream,
    }
    return found if outcome.error is None else {**found, "error": outcome.error}
