"""One request being answered: its job is followed, its reply sent whole or as it comes.

Knows HTTP and the service; what a reply looks like is the reply's business.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from time import perf_counter
from typing import Any, Protocol

from fastapi import Request
from starlette.responses import JSONResponse, Response

from parlay.server.api.job import Event, Job
from parlay.server.api.planner import Plan
from parlay.server.lifecycle.service import Service
from parlay.web import failures, unknown
from parlay.web import streaming as sse

# Clients give up on a stream that says nothing for minutes, and long prompts take minutes.
WAITING_S = 10.0


class Replying(Protocol):
    """A reply in the making, in any format."""

    id: str

    def frame(self, event: Event) -> bytes:
        """A round as it is streamed."""

    def take(self, event: Event) -> None:
        """A round of a reply that is sent whole."""

    def waiting(self) -> bytes:
        """A sign of life while the prompt is read."""

    def last(self) -> bytes:
        """What ends the stream."""

    def whole(self) -> dict[str, Any]:
        """The reply as one object."""

    def failed(self, failure: failures.Failure) -> bytes:
        """What ends a stream that broke."""


class Exchange:
    """One request being answered, streamed or whole."""

    def __init__(
        self,
        service: Service,
        plan: Plan,
        model: str,
        stream: bool,
        reply: Callable[[Job], Replying],
    ) -> None:
        self._service = service
        self._plan = plan
        self._stream = stream
        self._job: Job = service.begin(plan, model)
        try:
            self._reply = reply(self._job)
        except BaseException:
            self._job.cancel()  # nobody would ever read what it goes on to make
            raise
        self._headers = unknown.header(plan.told)
        self._last = perf_counter()

    async def respond(self, request: Request) -> Response:
        if self._stream:
            return sse.EventStream(self._frames(), self._leave, self._headers)
        try:
            return await self._whole(request)
        except failures.Failure as failure:
            self._finished(failure.status, error=failure.code)
            body = failure.body_for(request.url.path)
            return JSONResponse(body, failure.status, failure.headers)
        finally:
            self._leave()

    async def _whole(self, request: Request) -> Response:
        """Collect everything, unless the client leaves first."""
        if not await sse.unless_gone(self._collect(), request.receive):
            self._finished(failures.LEFT)
            return Response(status_code=failures.LEFT)  # nobody is there to read it
        self._finished(200)
        return JSONResponse(self._reply.whole(), headers=self._headers)

    async def _collect(self) -> None:
        async for event in self._job.events():
            self._time(event)
            self._reply.take(event)

    async def _frames(self) -> AsyncIterator[bytes]:
        data, n_left = b"", len(self._job.sequences)
        try:
            async for batch in self._job.batches(WAITING_S):
                data += b"" if batch else self._reply.waiting()
                for event in batch:
                    self._time(event)
                    data += self._reply.frame(event)
                    n_left -= event.last
                if n_left == 0:
                    self._finished(200)  # logged before the last byte goes out
                    data += self._reply.last()
                if data:
                    yield data
                    data = b""
        except failures.Failure as failure:
            self._finished(failure.status, error=failure.code)
            yield data + self._reply.failed(failure)

    def _time(self, event: Event) -> None:
        """Time between tokens as the client will see it; the first has no gap."""
        now = perf_counter()
        n = len(event.pieces)
        first = self._job.sequences[event.index].n_generated == n
        if n and not first:
            self._service.metrics.between.observe((now - self._last) / n)
        self._last = now

    def _finished(self, status: int, **more: Any) -> None:
        if not self._job.logged:
            self._job.logged = True
            about = {"status": status, "stream": self._stream, **more}
            self._service.finished(self._job, self._plan, self._reply.id, about)

    def _leave(self) -> None:
        """However it ended: free the slots, and log a client that went away, or was sent away."""
        self._job.cancel()
        if self._service.gave_up:
            self._finished(503, error="shutting_down")
        self._finished(failures.LEFT)
