"""One request through the gateway: a server is chosen, asked, exchanged while it can be, relayed.

Before the first byte another server may take over; after it, never. Knows both sides' HTTP.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from time import perf_counter
from typing import Any

from fastapi import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from parlay.ask import Figures
from parlay.chat.deltas import CallArguments, CallBegin, Delta, Text, Thought
from parlay.front import errors as failures
from parlay.front import streaming as sse
from parlay.front.doors.door import Finished, Writer
from parlay.front.remote.server import Server as Upstream
from parlay.gateway import figures
from parlay.gateway.asking import Asked
from parlay.gateway.figures import ObservedAnswer, PoolDecision
from parlay.gateway.relay import Attempt, RelayedPiece, UpstreamFailed
from parlay.gateway.service import Gateway
from parlay.reading import answers
from parlay.reading.typed_answers import ENDS
from parlay.web import admission


class Exchange:
    """One request being answered, streamed or whole."""

    def __init__(self, gateway: Gateway, asked: Asked, writer: Writer | None = None) -> None:
        """`writer`: of another format than chat's, for engines that have chat only."""
        self._gateway = gateway
        self._asked = asked
        self._writer = writer
        self._begun = False
        admission.settle()  # counted by the pools from here on
        self._observed = ObservedAnswer(perf_counter())
        self._deadline = self._observed.arrived + gateway.deployment.server.request_timeout_s
        self._choice = gateway.choose(asked)
        self._attempt: Attempt | None = None
        self._tried: list[Upstream] = []
        self._n_retries = 0
        n = asked.body.get("n")
        self._unfinished = set(range(n if type(n) is int and n > 0 else 1))
        self._over = False
        self._id = f"parlay-{secrets.token_hex(12)}"

    # -- finding a server -------------------------------------------------------

    async def respond(self, request: Request) -> Response:
        """The answer, or nothing where the client has left."""
        try:
            if not await sse.unless_gone(self._begin(), request.receive):
                self._end(failures.LEFT)
                return Response(status_code=failures.LEFT)  # nobody is there to read it
        except failures.Failure as failure:
            self._end(failure.status, None, error=failure.code)
            body = failure.body_for(request.url.path)
            return JSONResponse(body, failure.status, failure.headers)
        if self._asked.stream:
            native = self._attempt is not None and self._attempt.native
            frames = self._native() if native else self._frames()
            return LimitedStream(frames, self._leave, self._headers, self._limit_s)
        return await self._whole()

    async def _begin(self) -> None:
        with self._gateway.under_way.waiting():
            await self._ask()

    async def _ask(self) -> None:
        """Ask servers until one begins to answer."""
        failed: UpstreamFailed | None = None
        for n in range(self._gateway.deployment.gateway.retries + 1):
            up = await self._lease(failed)
            self._n_retries = n
            self._observed.asked = perf_counter()
            attempt = self._attempt = self._gateway.attempt(up, self._asked)
            try:
                await attempt.begin(self._left())
                return
            except UpstreamFailed as error:
                failed = error
                self._gateway.failed(up, error)
                self._tried.append(up)
                await self._drop()
            except BaseException:
                await self._drop()
                raise
        raise _answer(failed)

    async def _lease(self, failed: UpstreamFailed | None) -> Upstream:
        """A server that has not failed this request; one that merely hung up may try again."""
        pools = self._gateway.pools
        kinds = (self._choice.speculative, not self._choice.speculative)
        if failed is not None and failed.reason == "cut" and not pools.fresh(self._tried):
            self._tried.clear()
        left = self._left()
        try:
            return await asyncio.wait_for(pools.lease(kinds, self._tried), left)
        except asyncio.TimeoutError:
            waited = self._gateway.deployment.server.request_timeout_s
            raise failures.timed_out(waited) from None
        except failures.Failure as refused:
            if failed is not None and refused.code == "no_upstream":
                raise _answer(failed) from None
            raise

    async def _drop(self) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            self._gateway.pools.release(attempt.up)
            await attempt.close()

    def _left(self) -> float:
        left = self._deadline - perf_counter()
        if left <= 0:
            raise failures.timed_out(self._gateway.deployment.server.request_timeout_s)
        return left

    # -- answering ----------------------------------------------------------------

    @property
    def _up(self) -> Upstream:
        assert self._attempt is not None
        return self._attempt.up

    @property
    def _decision(self) -> PoolDecision:
        """What was decided, or what became of it when no server of that kind was there."""
        if self._up.pool.speculative == self._choice.speculative:
            return self._choice
        return PoolDecision(self._up.pool.speculative, "unavailable")

    @property
    def _headers(self) -> dict[str, str]:
        decision = self._decision
        return {
            "X-Parlay-Pool": self._up.pool.name,
            "X-Parlay-Speculative": str(decision.speculative).lower(),
            "X-Parlay-Reason": decision.why,
        }

    @property
    def _limit_s(self) -> float:
        """A client that does not read holds a server no longer than a request may take."""
        return max(1.0, self._deadline - perf_counter() + self._gateway.deployment.server.drain_s)

    async def _whole(self) -> Response:
        assert self._attempt is not None
        piece = self._attempt.first_pieces[0]
        self._see(piece)
        self._observed.ended = perf_counter()
        numbers = self._numbers()
        headers = self._headers
        self._end(200, numbers)
        if self._writer is not None and not self._attempt.native:
            return JSONResponse(self._translated(piece, numbers), headers=headers)
        return JSONResponse({**self._named(piece.chunk), "speculation": numbers}, headers=headers)

    def _translated(self, piece: RelayedPiece, numbers: dict[str, Any]) -> dict[str, Any]:
        """A whole answer of chat's in another format."""
        assert self._writer is not None
        self._writer.delta(0, _deltas(_indexed(_choice(piece.chunk).get("message"))))
        end = self._how_it_ended(piece.chunk, numbers)
        self._writer.end(0, end)
        return self._writer.whole(end)

    def _how_it_ended(self, usage: dict[str, Any], numbers: dict[str, Any]) -> Finished:
        reason = self._observed.said.finish_reason or "stop"
        told = answers.mapping(usage.get("usage"))
        cached = answers.mapping(told.get("prompt_tokens_details")).get("cached_tokens")
        figures = Figures(
            n_prompt=told.get("prompt_tokens") or 0,
            n_cached=cached or 0,
            n_generated=told.get("completion_tokens") or 0,
        )
        made = answers.mapping(told.get("completion_tokens_details"))
        n_thought = made.get("reasoning_tokens") or 0
        return Finished(reason, figures, {"speculation": numbers}, None, n_thought)

    async def _frames(self) -> AsyncGenerator[bytes, None]:
        """The stream, a piece behind at its end: the last choice carries the numbers."""
        assert self._attempt is not None
        last: dict[str, Any] | None = None  # a choice's end, held back until its numbers are in
        usage: dict[str, Any] = {}
        try:
            async for pieces in self._pieces(self._attempt):
                frames = []
                for piece in pieces:
                    self._see(piece)
                    chunk = self._named(piece.chunk)
                    if not chunk.get("choices"):
                        usage = chunk
                        continue
                    frames += [] if last is None else [last]
                    last = chunk if self._ends_a_choice(chunk) else None
                    frames += [] if last is not None else [self._without_usage(chunk)]
                if frames:
                    yield self._sent(*frames)
            yield self._finish(last, usage)
        except (UpstreamFailed, failures.Failure) as error:
            if last is not None and not self._unfinished:  # only the farewell is missing
                yield self._finish(last, usage)
                return
            rest = b"" if last is None else self._sent(last)
            yield rest + self._break_off(error)

    def _break_off(self, error: UpstreamFailed | failures.Failure) -> bytes:
        """The end of a stream that has none, logged before its bytes go out."""
        if isinstance(error, UpstreamFailed):
            self._gateway.failed(self._up, error)
            error = error.answer or _broken()
        self._end(error.status, None, error=error.code)
        return self._told(error)

    def _sent(self, *chunks: dict[str, Any]) -> bytes:
        """Chunks in the format the client asked in."""
        if self._writer is None:
            return sse.frame(*chunks)
        begun = "" if self._begun else self._writer.begin(0)
        self._begun = True
        parts = [self._writer.delta(0, _deltas(_choice(chunk).get("delta"))) for chunk in chunks]
        return (begun + "".join(parts)).encode()

    def _told(self, failure: failures.Failure) -> bytes:
        if self._writer is None:
            return sse.frame(failure.body) + sse.DONE.encode()
        return self._sent() + self._writer.error(failure).encode()

    async def _native(self) -> AsyncGenerator[bytes, None]:
        """The stream of an engine that has the client's own format: passed on as it comes."""
        assert self._attempt is not None
        try:
            async for pieces in self._pieces(self._attempt):
                for piece in pieces:
                    self._see(piece)
                    last = piece.chunk.get("type") in ENDS
                    yield self._last_event(piece.chunk) if last else _event(piece.chunk)
            if not self._attempt.done:
                raise UpstreamFailed("cut")
        except (UpstreamFailed, failures.Failure) as error:
            yield self._break_off(error)

    def _last_event(self, chunk: dict[str, Any]) -> bytes:
        """With the numbers, and logged before its bytes go out."""
        self._observed.ended = perf_counter()
        numbers = self._numbers()
        self._end(200, numbers)
        response = answers.mapping(chunk.get("response"))
        if response:
            return _event({**chunk, "response": {**response, "speculation": numbers}})
        return _event({**chunk, "speculation": numbers})

    async def _pieces(self, attempt: Attempt) -> AsyncGenerator[list[RelayedPiece]]:
        yield attempt.first_pieces
        with self._gateway.under_way.waiting():
            async for pieces in attempt.rest(self._deadline):
                yield pieces

    def _finish(self, last: dict[str, Any] | None, usage: dict[str, Any]) -> bytes:
        """The end, logged before its bytes go out."""
        assert self._attempt is not None
        late = perf_counter() >= self._deadline
        if self._unfinished and not late and not self._attempt.done:
            raise UpstreamFailed("cut")
        before: list[dict[str, Any]] = []
        if last is None or self._unfinished:
            before = [] if last is None else [self._without_usage(last)]
            last = self._end_of_stream("length" if late else "stop")
        self._observed.ended = perf_counter()
        numbers = self._numbers()
        self._end(200, numbers)
        if self._writer is not None:
            end = self._how_it_ended(usage, numbers)
            return self._sent(last) + (self._writer.end(0, end) + self._writer.close(end)).encode()
        if not self._asked.wants_usage:
            # Engines put their figures beside the usage; the client gets them all the same.
            last = {**_figures(usage), **self._without_usage(last)}
            usage = {}
        chunks = [*before, {**last, "speculation": numbers}]
        if usage:
            chunks.append({**usage, "speculation": numbers})
        return sse.frame(*chunks) + sse.DONE.encode()

    def _end_of_stream(self, reason: str) -> dict[str, Any]:
        """For a stream without an end of its own, mostly by the time limit."""
        self._observed.said = self._observed.said.then(answers.AnswerEvent(finish_reason=reason))
        empty: dict[str, Any] = (
            {"text": ""} if self._asked.endpoint == "completions" else {"delta": {}}
        )
        assert self._attempt is not None
        head = {k: v for k, v in self._attempt.first_pieces[0].chunk.items() if k != "choices"}
        choices = [
            {"index": i, **empty, "logprobs": None, "finish_reason": reason}
            for i in sorted(self._unfinished) or [0]
        ]
        return self._named({**head, "choices": choices})

    def _ends_a_choice(self, chunk: dict[str, Any]) -> bool:
        """Whether a choice is over with this chunk; each of them must be, for the stream to be."""
        choices = [answers.mapping(choice) for choice in answers.listed(chunk.get("choices"))]
        ended = {c.get("index", 0) for c in choices if answers.string(c.get("finish_reason"))}
        self._unfinished -= ended
        return bool(ended)

    # -- chunks -------------------------------------------------------------------

    def _see(self, piece: RelayedPiece) -> None:
        observed, now = self._observed, perf_counter()
        if piece.event.text and observed.last is not None:
            self._gateway.metrics.between.observe(now - observed.last)
        observed.see(piece.event, now)
        if piece.event.text and self._asked.stream:
            self._gateway.live.token(self._asked.route)
        given = piece.chunk.get("id")
        if isinstance(given, str):
            self._id = given[:200]

    def _named(self, chunk: dict[str, Any]) -> dict[str, Any]:
        """Under the name the client asked for."""
        return {**chunk, "model": self._asked.model or self._gateway.model_name}

    def _without_usage(self, chunk: dict[str, Any]) -> dict[str, Any]:
        """Some engines repeat it on every chunk once they are asked; the client may not have."""
        if self._asked.wants_usage or "usage" not in chunk:
            return chunk
        return {name: value for name, value in chunk.items() if name != "usage"}

    def _numbers(self) -> dict[str, Any]:
        return figures.speculation(
            self._observed,
            self._decision,
            self._up.pool.name,
            self._asked.route,
            self._gateway.route(self._asked),
            streamed=self._asked.stream,
        )

    # -- the end ------------------------------------------------------------------

    def _leave(self) -> None:
        """A stream is over, however it ended: nothing of it stays behind."""
        if self._gateway.under_way.given_up:
            self._end(503, None, error="shutting_down")
        self._end(failures.LEFT)

    def _end(self, status: int, numbers: dict[str, Any] | None = None, **more: Any) -> None:
        """Count, log and let go; only the first call does anything."""
        if self._over:
            return
        self._over = True
        observed, asked, attempt = self._observed, self._asked, self._attempt
        observed.ended = observed.ended or perf_counter()
        about = {"status": status, "stream": asked.stream, "retries": self._n_retries, **more}
        if attempt is None:
            self._gateway.unanswered(asked, observed, about)
            return
        line = figures.record(
            numbers or self._numbers(),
            observed,
            request_id=self._id,
            endpoint=asked.endpoint,
            streamed=asked.stream,
        )
        self._gateway.finished(asked, observed, attempt.up, line, about)
        took = None if status == failures.LEFT else observed.ended - observed.arrived
        self._gateway.pools.release(attempt.up, took)
        self._gateway.later(attempt.close())


class LimitedStream(sse.EventStream):
    """A stream that a client must have read in a given time."""

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        on_end: Callable[[], None],
        headers: Mapping[str, str],
        limit_s: float,
    ) -> None:
        super().__init__(frames, on_end)
        self.headers.update(headers)
        self._limit_s = limit_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(super().__call__(scope, receive, send), self._limit_s)


def _choice(chunk: dict[str, Any]) -> dict[str, Any]:
    return answers.first(chunk.get("choices"))


def _deltas(given: object) -> list[Delta]:
    """A delta of chat's in a door's words."""
    delta, found = answers.mapping(given), list[Delta]()
    if thought := answers.string(delta.get("reasoning_content")):
        found.append(Thought(thought))
    if text := answers.string(delta.get("content")):
        found.append(Text(text))
    for call in map(answers.mapping, answers.listed(delta.get("tool_calls"))):
        function, index = answers.mapping(call.get("function")), call.get("index") or 0
        if name := answers.string(function.get("name")):
            known = answers.string(call.get("id"))
            found.append(CallBegin(index, known or CallBegin.of(index, name).id, name))
        if arguments := answers.string(function.get("arguments")):
            found.append(CallArguments(index, arguments))
    return found


def _indexed(message: object) -> dict[str, Any]:
    """A whole message as one delta."""
    found = answers.mapping(message)
    calls = [
        {"index": i, **answers.mapping(call)}
        for i, call in enumerate(answers.listed(found.get("tool_calls")))
    ]
    return {**found, "tool_calls": calls}


def _event(chunk: dict[str, Any]) -> bytes:
    return sse.event(str(chunk.get("type")), chunk)


def _figures(chunk: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in chunk.items() if name in ("timings", "metrics")}


def _answer(failed: UpstreamFailed | None) -> failures.Failure:
    known = None if failed is None else failed.answer
    return known or failures.Failure(
        502, "no engine could answer this request; try again", "server_error", "upstream", None, 1
    )


def _broken() -> failures.Failure:
    return failures.Failure(
        502, "the engine stopped in the middle of its answer", "server_error", "upstream"
    )
