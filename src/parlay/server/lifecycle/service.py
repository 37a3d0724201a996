"""The service: one engine with its planner, its numbers, its log and its care.

Everything the routes need, without a word of HTTP; runs on the event loop.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import Request

from parlay.ask import Answerer, Ask, Remark
from parlay.backend.answering import Answering, Making
from parlay.backend.inprocess import InProcess
from parlay.chat.prompter import Prompter, PromptSettings
from parlay.control import guard
from parlay.deployment import Deployment
from parlay.engine.engine import Engine
from parlay.engine.pricing import Pricing
from parlay.errors import BadRequest
from parlay.front import errors as failures
from parlay.front import limits
from parlay.front.answers import Outcome
from parlay.front.doors.door import Asked, Visit
from parlay.front.stored_responses import StoredResponses
from parlay.server.figures.metrics import Gauges, Metrics
from parlay.server.figures.observer import Observer
from parlay.server.figures.recent_answers import Key, RecentAnswers
from parlay.server.lifecycle.answer_memory import AnswerMemory
from parlay.server.lifecycle.cache_care import CacheCare
from parlay.server.lifecycle.drafter_care import DrafterCare
from parlay.server.lifecycle.engine_start import check_drafters, drafter_paths, guarded
from parlay.server.lifecycle.slot_files import SlotFiles, make_slot_folder
from parlay.server.lifecycle.warmup import WarmUp
from parlay.web import admission
from parlay.web.alerts import Alerts
from parlay.web.memory_pressure import MemoryPressure, process_bytes
from parlay.web.request_log import RequestLog, timestamp
from parlay.web.security import checked_keys, given_key
from parlay.web.supervisor_link import SupervisorLink

_MAX_RETRY_S = 60
_BETS = {
    "controller",
    "speculative_window",
    "min_token_acceptance",
    "min_sequence_acceptance",
    "fallback_threshold_pct",
}


class Service:
    """A loaded target, ready to answer over HTTP."""

    def __init__(self, deployment: Deployment, engine: Engine, observer: Observer) -> None:
        self.engine = engine
        self.observer = observer
        self.started = time.time()
        self.draining = False
        self.gave_up = False  # on the answers that were still open when draining ended
        self.admission = admission.Admission()
        self.supervisor_link = SupervisorLink()  # nobody keeps anything, unless a supervisor does
        self.alerts = Alerts()
        self.memory = MemoryPressure(deployment.monitoring.memory_pressure_pct)
        self.metrics = Metrics(observer, self.gauges)
        self.pricing: Pricing | None = None  # where windows are chosen by measured time
        self.warm_up = WarmUp(engine, observer.baseline)
        self.drafter = DrafterCare(
            engine,
            drafter_paths(deployment),
            self.alerts,
            check=lambda paths: check_drafters(self.deployment, paths),
            on_ready=self._pair,
        )
        self.cache = CacheCare(engine)
        self.prompter = Prompter(
            engine.model.vocabulary,
            engine.model.chat_template(),
            mode=engine.mode,
            context_size=engine.target.context_size,
            recommended=engine.model.facts.temperature,
            pressed=lambda: self.memory.pressed,
        )
        self.answering = Answering(
            engine,
            self.prompter,
            observer.baseline,
            logs_texts=lambda: self.deployment.monitoring.log_prompts,
        )
        self.backend = InProcess(self.answering, lambda: self.model_names)
        self.backend.on_begin = self.begun
        self.recent = RecentAnswers()
        self.responses = StoredResponses(0)
        kept = deployment.runtime.remember_file
        self.answer_memory = AnswerMemory(engine, Path(kept).expanduser() if kept else None)
        self._makings: dict[str, Making] = {}  # until they are counted, by the answer's id
        self._n_admitted = 0  # answers that were let in and have not ended
        self._usual_s = 1.0  # running mean of a request's time, for Retry-After
        self._log: RequestLog | None = None
        self.loop: asyncio.AbstractEventLoop | None = None  # set when it runs
        self._bets: dict[str, Any] = {}  # the keys that made the controller
        self.started_with = deployment  # what the engine and the address are made of
        self._bound = deployment.server.host
        self.apply(deployment)

    def apply(self, deployment: Deployment) -> None:
        """Take over everything that can change while requests run: all of it, or nothing."""
        keys = checked_keys(deployment, self._bound)
        saved = deployment.server.slot_save_path
        folder = None if saved is None else Path(saved).expanduser()
        if folder is not None:
            make_slot_folder(folder)
        log = RequestLog.of(deployment.monitoring)
        # From here on nothing fails.
        self.deployment = deployment
        self.slot_files = SlotFiles(self.engine, folder, deployment.server.slot_save_mb << 20)
        self.keys = keys
        self.responses.size = deployment.server.stored_responses
        self.responses.trim()
        self.alerts.webhook = deployment.monitoring.alert_webhook
        self.memory.limit_pct = deployment.monitoring.memory_pressure_pct
        self._control(deployment)
        self.prompter.follow(
            PromptSettings(
                temperature=deployment.server.default_temperature,
                max_prompt_tokens=deployment.server.max_prompt_tokens,
                max_answer_tokens=deployment.server.max_answer_tokens,
                context_full=deployment.runtime.context_full,
                routes=deployment.routes,
                adaptive=self.pricing is not None,
                trusted=deployment.server.parse_special_in_messages,
            )
        )
        old, self._log = self._log, log
        if old is not None:
            old.close()

    def _control(self, deployment: Deployment) -> None:
        """Make the controller anew where its keys changed; else it keeps what it has seen."""
        bets = deployment.runtime.model_dump(include=_BETS)
        if bets == self._bets:
            return
        if not deployment.runtime.adaptive:
            self.keep_learned()
            self.pricing = None
        elif self.pricing is None:
            self.pricing = Pricing(self.engine, drafter_paths(deployment))
            self.warm_up.price(self.pricing)
        self.guard = guarded(deployment, self.pricing, self._hear)
        prices = None if self.pricing is None else self.pricing.prices
        self.engine.call(partial(self.engine.control, self.guard, prices))
        self._bets = bets

    def _pair(self, drafters: tuple[Path, ...]) -> None:
        """Other drafters are in use, on the worker's thread from its next round."""
        if self.pricing is not None:
            self.engine.call(partial(self.pricing.pair, drafters))

    def keep_learned(self) -> None:
        """Save what the controller learned; on the worker's thread, which learns it."""
        self.answer_memory.keep()
        if self.pricing is not None:
            self.engine.call(self.pricing.save)

    def _hear(self, alert: guard.LimitAlert) -> None:
        """A guard rail acted, on the worker's thread; the share of fallbacks is watched anyway."""
        text = f"{alert.kind} is {alert.value:.3g}, below {alert.limit:g}: decoding plainly"
        if self.loop is not None and alert.kind != "fallback_share":
            self.loop.call_soon_threadsafe(self.alerts.set, "low_acceptance", text)

    @property
    def model_name(self) -> str:
        """What clients call the target: an alias, or its file's name without folders."""
        alias = self.deployment.model.alias
        return alias[0] if alias else self.engine.settings.target.stem

    # -- requests -------------------------------------------------------------

    @property
    def model_names(self) -> tuple[str, ...]:
        return self.deployment.model.alias or (self.model_name,)

    def visit(self, request: Request) -> Visit:
        return Visit(given_key(dict(request.scope["headers"])), self.responses)

    def checked(self, asked: Asked, request: Request) -> tuple[Ask, tuple[Remark, ...]]:
        owner = self.keys.owner(self.visit(request).key)
        return limits.checked(asked, self.deployment, owner, dict(request.headers))

    def choose(self, model: str) -> tuple[Answerer, str, tuple[Remark, ...]]:
        names = self.model_names
        return self.backend, model or names[0], limits.known_model(model, names)

    def admit(self, n: int) -> None:
        """Let a request in, or say when to come back."""
        if self.draining:
            raise failures.unavailable("the server is shutting down", "shutting_down")
        admission.settle()  # counted by its answers from here on
        room = self.engine.settings.context.n_sequences + self.deployment.server.queue_size
        if n > room:
            raise BadRequest(f"n is {n}; this server holds {room} answers at once")
        if self.n_open + n > room:
            raise self._busy()
        self._n_admitted += n

    def leave(self, n: int) -> None:
        self._n_admitted -= n

    def begun(self, making: Making, route: str | None = None) -> None:
        """The engine has taken a request on."""
        self._makings[making.ask.id] = making
        name = self._known_name(making.ask.model)
        self.recent.begin(making, Key(route or making.policy, name))

    def owner_of(self, key: str) -> str:
        """Whose cached prompts a request may use, by the key it showed."""
        return "" if self.deployment.server.share_prompt_cache else self.keys.owner(key)

    def _known_name(self, model: str) -> str:
        """One of our names: what clients make up is no label."""
        return model if model in self.deployment.model.alias else self.model_name

    def full(self) -> failures.Failure | None:
        """Before a body is read: whether its answer would have a place."""
        room = self.engine.settings.context.n_sequences + self.deployment.server.queue_size
        return self._busy() if self.n_open + self.admission.n_coming >= room else None

    def _busy(self) -> failures.Failure:
        n_slots = self.engine.settings.context.n_sequences
        wait = math.ceil(self._usual_s * (self.n_open - n_slots + 1) / n_slots)
        return failures.busy(min(max(1, wait), _MAX_RETRY_S))

    @property
    def n_open(self) -> int:
        """Answers that are made, or wait to be."""
        return self._n_admitted

    def die(self) -> None:
        """The engine's thread is gone: let the supervisor start another process, if there is one.

        Without one the health check fails from here on.
        """
        self.alerts.set("engine", "the engine's thread died; restart the server")
        if self.supervisor_link.channel is not None:
            os._exit(70)

    def cancel_all(self) -> None:
        """Nobody waits any longer: answers end where they are, and say why."""
        self.draining = self.gave_up = True
        self.backend.cancel_all()

    # -- what was answered ----------------------------------------------------

    def between(self, seconds: float) -> None:
        self.metrics.between.observe(seconds)

    def finished(self, outcome: Outcome) -> None:
        """Count and log one request, before its last byte is sent."""
        making = self._makings.pop(outcome.ask.id, None)
        left = outcome.status == failures.LEFT
        if making is not None and left:  # it has taken until now
            outcome.figures = making.figures()
        figures = outcome.figures
        if not left:  # how long an answer takes, one that was left does not tell
            self._usual_s += 0.1 * (figures.e2e_s - self._usual_s)
            self.metrics.whole.observe(figures.e2e_s)
        self.metrics.queued.observe(figures.queue_s)
        if figures.ttft_s is not None:
            self.metrics.ttft.observe(figures.ttft_s)
        self.metrics.requests.labels(outcome.ask.door, outcome.status).inc()
        record = _record(outcome)
        if making is not None:
            self.recent.finish(making, outcome.ask.id, record)
        if self._log is not None:
            self._log.write(record | _texts(outcome))

    def refused(self, endpoint: str, failure: failures.Failure) -> None:
        """Count and log a request that got no answer."""
        self.metrics.requests.labels(endpoint, failure.status).inc()
        if self._log is not None:
            record = {"endpoint": endpoint, "status": failure.status, "error": failure.code}
            self._log.write({"time": timestamp(), **record})

    # -- numbers --------------------------------------------------------------

    def gauges(self) -> Gauges:
        engine = self.engine
        size, n_slots = engine.target.context_size, engine.settings.context.n_sequences
        active = engine.active
        idle = [slot for slot in engine.slots.all if not slot.busy]
        return Gauges(
            slots=n_slots,
            slots_busy=len(active),
            queue_length=engine.n_waiting,
            cache_tokens=sum(s.n_cached for s in active) + sum(len(s.tokens) for s in idle),
            cache_capacity=size * n_slots,
            cache_holes=sum(engine.target.holes(s.seq_id, s.n_cached) for s in active),
            compactions=self.cache.n_compactions,
            drafter_ready=self.drafter.state == "ready",
            memory_used_pct=self.memory.used_pct,
            process_bytes=process_bytes(),
            alerts=tuple(self.alerts.n_raised.items()),
        )

    def close(self) -> None:
        self.keep_learned()
        self.engine.close()
        if self._log is not None:
            self._log.close()


def _record(outcome: Outcome) -> dict[str, Any]:
    figures, accepted = outcome.figures, outcome.accepted
    found = {
        "time": timestamp(),
        "request_id": outcome.ask.id,
        "endpoint": outcome.ask.door,
        "finish_reason": outcome.finish_reason or "cancelled",
        "prompt_tokens": accepted.n_prompt[0] if accepted is not None else 0,
        "reused_tokens": figures.n_cached,
        "tokens_per_second": figures.timings.get("predicted_per_second", 0.0),
        **figures.speculation,
        "status": outcome.status,
        "stream": outcome.stream,
    }
    return found if outcome.error is None else {**found, "error": outcome.error}


def _texts(outcome: Outcome) -> dict[str, Any]:
    """What was asked and answered, where that is logged."""
    if not outcome.texts:
        return {}
    return {"prompt": outcome.texts[0], "answers": list(outcome.texts[1:])}
