"""One arm of a quick A/B: the server's own models, with speculation or without.

Knows the service and the bench's protocol. Called in the runner's thread; the answering happens on
the event loop and the worker, as for any client.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import TypeVar

from parlay import ask as request
from parlay.backend.answering import Making
from parlay.bench.own import speculation_of
from parlay.bench.record import ArmInfo
from parlay.bench.subject import Ask, Reply, SubjectError, TimedOut
from parlay.engine.engine import Engine
from parlay.errors import ParlayError
from parlay.front.answers import Outcome
from parlay.front.errors import LEFT, Failure
from parlay.front.schema import ChatRequest
from parlay.llama import library
from parlay.server.lifecycle.service import Service

T = TypeVar("T")
ROUTE = "bench"  # under which the requests are counted


class ServedArm:
    """Asks through the queue."""

    def __init__(self, service: Service, loop: asyncio.AbstractEventLoop, speculates: bool) -> None:
        self._service = service
        self._loop = loop
        self._speculates = speculates
        self._making: Making | None = None
        self.n_asked = 0
        proposers = "+".join(service.engine.drafts.named)
        self._info = ArmInfo(
            name=f"served, {proposers}"[:90] if speculates else "served, plain",
            kind="parlay",
            method=proposers[:90] or "none" if speculates else "none",
            speculates=speculates,
            mode=service.engine.mode,
            model=service.model_name[:90],
            build=library.version()[:90],
        )

    @property
    def info(self) -> ArmInfo:
        return self._info

    def warm_up(self, ask: Ask) -> None:
        """One answer; the server has been warm for long."""
        self.ask(ask)

    def ask(self, ask: Ask) -> Reply:
        answering = asyncio.run_coroutine_threadsafe(self._ask(ask), self._loop)
        try:
            return answering.result(ask.time_limit_s + 5)
        except Failure as failure:
            raise SubjectError(failure.message) from failure
        except futures.TimeoutError as error:
            answering.cancel()
            raise TimedOut(f"no whole answer after {ask.time_limit_s:g} s") from error

    def stop(self) -> None:
        """End the answer that is being made; on the event loop."""
        if self._making is not None:
            self._making.cancel()

    async def _ask(self, ask: Ask) -> Reply:
        body = ChatRequest.model_validate(
            {
                "messages": ask.prompt.messages,
                "tools": ask.prompt.tools or None,
                "max_tokens": ask.max_tokens,
                "temperature": ask.temperature,
                "seed": ask.seed,
                "speculation": self._speculates,
                "prompt_cache_key": f"bench-{secrets.token_hex(12)}",  # nobody's earlier answers
            }
        )
        ask_ = request.Ask(door="chat", id=f"bench-{secrets.token_hex(12)}", **body.asked())
        began, loop = time.perf_counter(), asyncio.get_running_loop()
        came: asyncio.Queue[Sequence[request.Reply]] = asyncio.Queue()

        def tell(replies: Sequence[request.Reply]) -> None:
            loop.call_soon_threadsafe(came.put_nowait, replies)

        service, text = self._service, ""
        outcome = Outcome(ask_, stream=False)
        making = await asyncio.to_thread(service.answering.begin, ask_, tell)
        service.begun(making, ROUTE)
        self._making = making
        self.n_asked += 1
        seq, last = making.sequences[0], None
        try:
            while not isinstance(last, (request.Done, request.Refused)):
                for reply in await came.get():
                    outcome.take(reply)
                    if isinstance(reply, request.Pieces):
                        text += "".join(reply.texts)
                    last = reply
        finally:  # also where nobody waits for it any more
            forgotten = self._count(making, outcome)
        await asyncio.wrap_future(forgotten)
        wall_s = time.perf_counter() - began
        if seq.finish_reason not in ("stop", "length"):
            raise SubjectError(f"the answer ended with {seq.finish_reason}")
        first, ended = seq.first_token or seq.started, seq.ended or seq.started
        return Reply(
            text=text,
            n_tokens=seq.n_generated,
            n_first=seq.n_first,
            n_prompt=len(seq.request.prompt),
            first_token_s=first - seq.started,
            decode_s=ended - first,
            wall_s=wall_s,
            server_decode_s=ended - first,
            finish_reason=seq.finish_reason,
            speculation=speculation_of(seq.counts),
        )

    def _count(self, making: Making, outcome: Outcome) -> futures.Future[None]:
        """As any request; and the next arm must find neither its prompt read nor its answer."""
        making.cancel()
        seq = making.sequences[0]
        outcome.status = 200 if seq.finish_reason in ("stop", "length") else LEFT
        self._service.finished(outcome)

        def forget() -> None:
            slot = self._service.engine.slots.all[seq.seq_id]
            if not slot.busy:
                slot.tokens = []

        if seq.seq_id >= 0:  # it has had a slot
            self._service.engine.call(forget)
        return self._service.answer_memory.forget(seq.request.memory)


def on_worker(engine: Engine, function: Callable[[], T], seconds: float) -> T:
    """Run something between two rounds, and wait for it."""
    asked = engine.call(function)
    try:
        return asked.result(seconds)
    except futures.TimeoutError:
        asked.cancel()
        raise ParlayError(
            "the worker had no time for it; try again when fewer answers are made"
        ) from None
