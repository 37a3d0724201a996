"""One way of answering for all doors: ask, backend, parser, writer.

Knows HTTP, and neither doors' forms nor how answers are made. The only orchestration: nothing is
promised before the backend accepts, a client that leaves takes its request back, what fails ends
the answer in its door's own form, and a request is logged before its last byte goes out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Protocol

from fastapi import Request
from starlette.responses import JSONResponse, Response

from parlay.ask import (
    Accepted,
    Answerer,
    Ask,
    Done,
    End,
    Figures,
    Pieces,
    Reading,
    Refused,
    Remark,
    Reply,
    SoFar,
)
from parlay.chat.deltas import CallBegin, Delta
from parlay.chat.parser import AnswerParser, RawText
from parlay.front import errors, unknown
from parlay.front import streaming as sse
from parlay.front.bodies import understood
from parlay.front.doors.door import Asked, Door, Finished, Visit

log = logging.getLogger("parlay.server")
# Clients give up on a stream that says nothing for minutes, and long prompts take minutes.
IDLE_S = 10.0
_PARSED = frozenset({"chat", "responses", "messages"})  # doors whose answers have parts


@dataclass(slots=True)
class Outcome:
    """What became of one request, as far as it is known: for metrics, log and live figures."""

    ask: Ask
    stream: bool
    arrived: float = field(default_factory=perf_counter)
    accepted: Accepted | None = None
    figures: Figures = field(default_factory=Figures)
    finish_reason: str | None = None  # of the first choice
    texts: tuple[str, ...] = ()
    status: int = 0
    error: str | None = None
    logged: bool = False

    def take(self, reply: Reply) -> None:
        if isinstance(reply, Accepted):
            self.accepted = reply
        elif isinstance(reply, SoFar):
            self.figures = reply.figures
        elif isinstance(reply, Done):
            self.figures, self.texts = reply.figures, reply.texts
        elif isinstance(reply, End) and reply.choice == 0:
            self.finish_reason = reply.reason


class Front(Protocol):
    """What answering needs of a server."""

    @property
    def gave_up(self) -> bool:
        """Draining is over, and open answers are broken off."""

    def visit(self, request: Request) -> Visit:
        """Who asks."""

    def checked(self, asked: Asked, request: Request) -> tuple[Ask, tuple[Remark, ...]]:
        """The request under this server's limits, and what is said of it; or why it is refused."""

    def choose(self, model: str) -> tuple[Answerer, str, tuple[Remark, ...]]:
        """Who answers, under which name, and what is said where no model is called so."""

    def admit(self, n: int) -> None:
        """Let in so many answers, or say when to come back."""

    def leave(self, n: int) -> None:
        """So many have their end."""

    def between(self, seconds: float) -> None:
        """Time between two tokens, as a client sees it."""

    def finished(self, outcome: Outcome) -> None:
        """Count and log a request, before its last byte is sent."""


async def answer(request: Request, door: Door, front: Front) -> Response:
    """Answer a request at a door."""
    visit = front.visit(request)
    asked = await understood(request, door.body, lambda body: door.ask(body, visit))
    ask, remarks = front.checked(asked, request)
    backend, model, told = front.choose(ask.model)
    n = ask.n * len(ask.prompts or (0,))
    answering = Answering(front, backend, asked, ask, model, n, (*remarks, *told))
    front.admit(n)
    return await answering.respond(request)


class Answering:
    """One request being answered, streamed or whole."""

    def __init__(
        self,
        front: Front,
        backend: Answerer,
        asked: Asked,
        ask: Ask,
        model: str,
        n: int,
        remarks: tuple[Remark, ...],
    ) -> None:
        self._front = front
        self._asked = asked
        self._ask = ask
        self._model = model
        self._n = n
        self._remarks = remarks
        self._outcome = Outcome(ask, asked.stream)
        self._facts = backend.facts
        self._replies = backend.answer(ask, whole=not asked.stream)
        self._choices: list[_Choice] = []
        self._came_with: Sequence[Reply] = ()  # what came with the acceptance
        self._left = False

    async def respond(self, request: Request) -> Response:
        """The answer, or nothing where the client has left."""
        path = request.url.path
        try:
            begun = await sse.unless_gone(self._begin(path), request.receive)
            if begun and self._asked.stream:
                return sse.EventStream(self._frames(path), self._leave, self._headers)
            here = begun and await sse.unless_gone(self._collect(), request.receive)
            if not here:
                await self._leave()
                return Response(status_code=errors.LEFT)  # nobody is there to read it
            self._finished(200)
            body = self._writer.whole(self._whole)
            await self._leave()
            return JSONResponse(body, headers=self._headers)
        except Exception as error:
            if self._outcome.accepted is None:  # whoever counts refusals does
                self._outcome.logged = True
                await self._leave()
                raise
            failure = self._failure(error, path)
            self._finished(failure.status, failure.code)
            await self._leave()
            return JSONResponse(failure.body_for(path), failure.status, failure.headers)
        except BaseException:
            await self._leave()
            raise

    @property
    def _headers(self) -> dict[str, str]:
        accepted = self._outcome.accepted
        return {**unknown.header(self._remarks), **(accepted.headers if accepted else {})}

    async def _begin(self, path: str) -> None:
        """Until the backend has accepted; before that nothing is promised."""
        async for batch in self._replies:
            for n, reply in enumerate(batch, 1):
                self._outcome.take(reply)
                if isinstance(reply, Refused):
                    raise errors.of_refused(reply, path)
                if isinstance(reply, Accepted):
                    self._remarks = (*self._remarks, *reply.remarks)
                    self._choices = [self._choice(reply) for _ in reply.n_prompt]
                    self._writer = self._asked.writer(reply, self._model)
                    self._came_with = batch[n:]
                    return
        raise errors.unavailable("the engine ended before it began", "engine_died")

    def _choice(self, accepted: Accepted) -> _Choice:
        if self._ask.door not in _PARSED:
            return _Choice(RawText())
        split = self._ask.split_reasoning
        functions, thinking = accepted.functions, accepted.thinking
        return _Choice(AnswerParser(self._facts, functions, thinking=thinking, split=split))

    async def _collect(self) -> None:
        async for batch in _patient(self._came_with, self._replies):
            for reply in batch:
                self._write(reply)

    async def _frames(self, path: str) -> AsyncGenerator[bytes, None]:
        """The stream: each batch in one write, signs of life until something is said."""
        begun, writer, said = False, self._writer, perf_counter()
        try:
            async with aclosing(_patient(self._came_with, self._replies)) as batches:
                async for batch in batches:
                    due, data = perf_counter() - said >= IDLE_S, ""
                    if not begun and (due or _says(batch)):
                        data, begun = writer.begin(_cached(batch)), True
                    data += "".join([self._write(reply) for reply in batch])
                    if due and not data:
                        data = writer.idle()
                    if batch and isinstance(batch[-1], Done):
                        self._finished(200)  # logged before the last byte goes out
                        data += writer.close(self._whole)
                    if data:
                        said = perf_counter()
                        yield data.encode()
        except Exception as error:
            failure = self._failure(error, path)
            self._finished(failure.status, failure.code)
            head = "" if begun else writer.begin(0)
            yield (head + writer.error(failure)).encode()

    def _write(self, reply: Reply) -> str:
        """One reply in the door's form."""
        self._outcome.take(reply)
        if isinstance(reply, Pieces):
            choice = self._choices[reply.choice]
            self._time(choice, reply.n_tokens)
            return self._writer.delta(reply.choice, choice.push(reply))
        if isinstance(reply, End):
            if reply.error is not None:
                raise _Broken(reply.error)
            choice = self._choices[reply.choice]
            data = self._writer.delta(reply.choice, choice.rest())
            return data + self._writer.end(reply.choice, choice.ended(reply, self._numbers))
        if isinstance(reply, Refused):
            raise _Broken(reply)
        return ""

    def _time(self, choice: _Choice, n: int) -> None:
        """Time between tokens as the client will see it; the first has no gap."""
        now = perf_counter()
        if n and choice.said_at is not None:
            self._front.between((now - choice.said_at) / n)
        choice.said_at = now

    def _numbers(self, figures: Figures) -> dict[str, Any]:
        """What every answer tells at its end, in whatever form."""
        accepted = self._outcome.accepted
        found: dict[str, Any] = {"speculation": figures.speculation, "timings": figures.timings}
        if accepted is not None:
            found["temperature"] = accepted.temperature
        if self._remarks:
            found["warnings"] = [remark.as_dict() for remark in self._remarks]
        return found

    @property
    def _whole(self) -> Finished:
        """Of all choices."""
        figures, first = self._outcome.figures, self._choices[0]
        n_thought = sum(choice.parser.n_thought for choice in self._choices)
        return Finished(first.reason, figures, self._numbers(figures), None, n_thought)

    # -- the end --------------------------------------------------------------

    def _failure(self, error: Exception, path: str) -> errors.Failure:
        if isinstance(error, _Broken):
            return errors.of_refused(error.refused, path)
        failure = errors.of(error, path)
        if failure.status >= 500 and not isinstance(error, errors.Failure):
            log.error("an answer failed", exc_info=error)
        return failure

    def _finished(self, status: int, error: str | None = None) -> None:
        outcome = self._outcome
        if outcome.logged:
            return
        outcome.logged = True
        outcome.status, outcome.error = status, error
        self._front.finished(outcome)

    async def _leave(self) -> None:
        """However it ended: take the request back, and log a client that went away, or was sent
        away."""
        if self._left:
            return
        self._left = True
        if self._front.gave_up:
            self._finished(503, "shutting_down")
        self._finished(errors.LEFT)
        self._front.leave(self._n)
        await self._replies.aclose()


class _Broken(Exception):
    """An answer that had begun cannot go on."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.message)
        self.refused = refused


class _Choice:
    """One of the answers of a request: its parser, and how it ended."""

    def __init__(self, parser: AnswerParser | RawText) -> None:
        self.parser = parser
        self.reason = "stop"
        self.said_at: float | None = None
        self._calls = False

    def push(self, pieces: Pieces) -> list[Delta]:
        return self._seen(self.parser.push(pieces))

    def rest(self) -> list[Delta]:
        return self._seen(self.parser.finish())

    def _seen(self, deltas: list[Delta]) -> list[Delta]:
        self._calls = self._calls or any(isinstance(one, CallBegin) for one in deltas)
        return deltas

    def ended(self, end: End, numbers: Callable[[Figures], dict[str, Any]]) -> Finished:
        self.reason = "tool_calls" if self._calls and end.reason == "stop" else end.reason
        n_thought, told = self.parser.n_thought, numbers(end.figures)
        return Finished(self.reason, end.figures, told, end.stopped_by, n_thought)


async def _patient(
    first: Sequence[Reply], replies: AsyncGenerator[Sequence[Reply], None]
) -> AsyncGenerator[Sequence[Reply], None]:
    """All of them; until a first word is said also nothing, whenever patience ends."""
    said = _says(first)
    if first:
        yield first
    while not said:
        coming = asyncio.ensure_future(anext(replies, None))
        try:
            while not coming.done():
                await asyncio.wait({coming}, timeout=IDLE_S)
                if not coming.done():
                    yield ()
        finally:
            if not coming.done():
                coming.cancel()
                await asyncio.gather(coming, return_exceptions=True)
        batch = coming.result()
        if batch is None:
            return
        said = _says(batch)
        yield batch
    async for batch in replies:
        yield batch


def _says(batch: Sequence[Reply]) -> bool:
    return any(isinstance(reply, (Pieces, End)) for reply in batch)


def _cached(batch: Sequence[Reply]) -> int:
    """Tokens of the prompt that had been read before, where that is known."""
    return next((reply.n_cached for reply in batch if isinstance(reply, Reading)), 0)
