"""The service: one engine with its planner, its numbers, its log and its care.

Everything the routes need, without a word of HTTP; runs on the event loop.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from parlay.control import guard
from parlay.deployment import Deployment
from parlay.engine.engine import Engine
from parlay.engine.pricing import Pricing
from parlay.engine.request import Request
from parlay.engine.structured.grammar import Grammars
from parlay.errors import BadRequest
from parlay.server.api import answer_statistics as statistics
from parlay.server.api.conversation import Conversation
from parlay.server.api.job import Event, Job, Mailbox
from parlay.server.api.planner import Plan, Planner
from parlay.server.api.response_memory import ResponseMemory
from parlay.server.figures.metrics import Gauges, Metrics
from parlay.server.figures.observer import Observer
from parlay.server.figures.recent_answers import Key, RecentAnswers
from parlay.server.lifecycle.answer_memory import AnswerMemory
from parlay.server.lifecycle.cache_care import CacheCare
from parlay.server.lifecycle.drafter_care import DrafterCare
from parlay.server.lifecycle.engine_start import check_drafters, drafter_paths, guarded
from parlay.server.lifecycle.slot_files import SlotFiles, make_slot_folder
from parlay.server.lifecycle.warmup import WarmUp
from parlay.web import admission, failures
from parlay.web.alerts import Alerts
from parlay.web.memory_pressure import MemoryPressure, process_bytes
from parlay.web.request_log import RequestLog, timestamp
from parlay.web.security import checked_keys
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
        self._conversation = Conversation(engine.model)
        self._grammars = Grammars(engine.model.vocabulary)
        self.recent = RecentAnswers()
        self.responses = ResponseMemory(0)
        kept = deployment.runtime.remember_file
        self.answer_memory = AnswerMemory(engine, Path(kept).expanduser() if kept else None)
        self._jobs: set[Job] = set()
        self._mailbox: Mailbox[Event] | None = None  # made with the first request
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
        self.planner = Planner(
            deployment,
            self._conversation,
            self._grammars,
            mode=self.engine.mode,
            context_size=self.engine.target.context_size,
            adaptive=self.pricing is not None,
            pressed=lambda: self.memory.pressed,
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
        self.engine.bets.controller = self.guard
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

    def begin(self, plan: Plan, model: str = "") -> Job:
        """Let a request in, or say when to come back. `model`: the name it was asked for by."""
        if self.draining:
            raise failures.unavailable("the server is shutting down", "shutting_down")
        owner = admission.settle()  # counted by its sequences from here on
        self._admit(len(plan.requests))
        plan = replace(plan, requests=tuple(self._owned(r, owner) for r in plan.requests))
        if self._mailbox is None:
            self._mailbox = Mailbox(asyncio.get_running_loop())
        job = Job(self._mailbox, self.deployment.server.request_timeout_s)
        job.start(self.engine, plan.requests)
        self._jobs.add(job)
        self.recent.begin(job, Key(plan.policy, self._known_name(model)))
        return job

    def owner_of(self, key: str) -> str:
        """Whose cached prompts a request may use, by the key it showed."""
        return "" if self.deployment.server.share_prompt_cache else self.keys.owner(key)

    def _owned(self, request: Request, owner: str) -> Request:
        """Whose it is: cached prompts may be shared, what was said to another never is."""
        memory = f"{owner}/{request.memory}" if request.memory else owner
        shared = self.deployment.server.share_prompt_cache
        return replace(request, memory=memory, owner="" if shared else owner)

    def _known_name(self, model: str) -> str:
        """One of our names: what clients make up is no label."""
        return model if model in self.deployment.model.alias else self.model_name

    def _admit(self, n: int) -> None:
        self._jobs = {job for job in self._jobs if job.n_open}
        room = self.engine.settings.context.n_sequences + self.deployment.server.queue_size
        if n > room:
            raise BadRequest(f"n is {n}; this server holds {room} answers at once")
        if self.n_open + n > room:
            raise self._busy()

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
        """Sequences in slots and in the queue."""
        return sum(job.n_open for job in self._jobs)

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
        for job in self._jobs:
            job.cancel()

    # -- what was answered ----------------------------------------------------

    def finished(self, job: Job, plan: Plan, reply_id: str, about: dict[str, Any]) -> None:
        """Count and log one request, before its last byte is sent."""
        seqs = job.sequences
        if about["status"] != failures.LEFT:  # how long an answer takes, it does not tell
            whole = max(statistics.e2e_s(seq) for seq in seqs)
            self._usual_s += 0.1 * (whole - self._usual_s)
            self.metrics.whole.observe(whole)
        self.metrics.queued.observe(max(0.0, statistics.queue_s(seqs[0])))
        if seqs[0].first_token is not None:
            self.metrics.ttft.observe(statistics.ttft_s(seqs[0]))
        self.metrics.requests.labels(plan.endpoint, about["status"]).inc()
        record = self._record(job, plan, reply_id) | about
        self.recent.finish(job, reply_id, record)
        if self._log is not None:
            texts = self._texts(job) if self.deployment.monitoring.log_prompts else {}
            self._log.write(record | texts)

    def refused(self, endpoint: str, failure: failures.Failure) -> None:
        """Count and log a request that got no answer."""
        self.metrics.requests.labels(endpoint, failure.status).inc()
        if self._log is not None:
            record = {"endpoint": endpoint, "status": failure.status, "error": failure.code}
            self._log.write({"time": timestamp(), **record})

    def _record(self, job: Job, plan: Plan, reply_id: str) -> dict[str, Any]:
        seqs = job.sequences
        numbers = statistics.speculation(seqs, plan.mode, plan.policy, self.observer.baseline)
        timings = statistics.timings(seqs)
        return {
            "time": timestamp(),
            "request_id": reply_id,
            "endpoint": plan.endpoint,
            "finish_reason": seqs[0].finish_reason or "cancelled",
            "prompt_tokens": len(seqs[0].request.prompt),
            "reused_tokens": seqs[0].n_reused,
            "tokens_per_second": timings["predicted_per_second"],
            **numbers,
        }

    def _texts(self, job: Job) -> dict[str, Any]:
        vocabulary = self.engine.model.vocabulary
        first = job.sequences[0].request.prompt
        answers = [seq.tokens[len(seq.tokens) - seq.n_generated :] for seq in job.sequences]
        return {
            "prompt": vocabulary.detokenize(list(first)),
            "answers": [vocabulary.detokenize(answer) for answer in answers],
        }

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
