"""OpenAI's routes: chat completions, completions, models.

Knows HTTP and the service; what a chunk looks like is the reply's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from time import perf_counter
from typing import Any, Literal

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from parlay.server.api.chat import ChatChoice
from parlay.server.api.completion import CompletionChoice
from parlay.server.api.job import Event, Job
from parlay.server.api.origins import Origins
from parlay.server.api.planner import Plan
from parlay.server.api.reply import Choice, Reply
from parlay.server.lifecycle.service import Service
from parlay.web import failures
from parlay.web import streaming as sse
from parlay.web.schema import ChatRequest, CompletionRequest, Options

router = APIRouter()


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


@router.post("/v1/chat/completions", summary="Answer a conversation", response_model=None)
async def chat_completions(request: Request, body: ChatRequest) -> Response:
    service = service_of(request)
    plan = await service.plan_chat(body, dict(request.headers))
    vocabulary = service.engine.model.vocabulary
    choices: list[Choice] = [
        ChatChoice(
            vocabulary,
            thinking=plan.thinking,
            split_reasoning=body.reasoning_format == "auto",
            tool_names=plan.tool_names,
            logprobs=body.logprobs,
        )
        for _ in plan.requests
    ]
    exchange = Exchange(service, plan, choices, body, "chatcmpl", "chat.completion.chunk")
    return await exchange.respond(request)


@router.post("/v1/completions", summary="Continue a text", response_model=None)
async def completions(request: Request, body: CompletionRequest) -> Response:
    service = service_of(request)
    plan = await service.plan_completion(body, dict(request.headers))
    vocabulary = service.engine.model.vocabulary
    wants = body.logprobs is not None
    choices: list[Choice] = [CompletionChoice(vocabulary, logprobs=wants) for _ in plan.requests]
    exchange = Exchange(service, plan, choices, body, "cmpl", "text_completion")
    return await exchange.respond(request)


@router.get("/v1/models", summary="The one model that is served")
async def models(request: Request) -> dict[str, Any]:
    service = service_of(request)
    names = service.deployment.model.alias or (service.model_name,)
    common = {"object": "model", "created": int(service.started), "owned_by": "parlay"}
    return {"object": "list", "data": [{"id": name, **common} for name in names]}


@router.post("/v1/embeddings", summary="Refused", status_code=501, response_model=None)
async def embeddings() -> Response:
    raise failures.Failure(
        501,
        "this server generates text and computes no embeddings; use an embedding model's server",
        code="not_supported",
    )


class Exchange:
    """One request being answered, streamed or whole."""

    def __init__(
        self,
        service: Service,
        plan: Plan,
        choices: list[Choice],
        body: Options,
        prefix: str,
        kind: str,
    ) -> None:
        self._service = service
        self._plan = plan
        self._body = body
        self._job: Job = service.begin(plan, body.model)
        self._reply = Reply(
            plan,
            self._job,
            choices,
            prefix=prefix,
            kind=kind,
            model=body.model or service.model_name,
            baseline=service.observer.baseline,
            origins=Origins(service.engine.model.vocabulary) if self._wants("origins") else None,
        )
        self._last = perf_counter()

    async def respond(self, request: Request) -> Response:
        if self._body.stream:
            return sse.EventStream(self._frames(), on_end=self._leave)
        try:
            return await self._whole(request)
        except failures.Failure as failure:
            self._finished(failure.status, error=failure.code)
            return JSONResponse(failure.body, failure.status, failure.headers)
        finally:
            self._leave()

    async def _whole(self, request: Request) -> Response:
        """Collect everything, unless the client leaves first."""
        collecting = asyncio.create_task(self._collect())
        leaving = asyncio.create_task(sse.gone(request.receive))
        try:
            await asyncio.wait({collecting, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not collecting.done():
                self._finished(499)
                return Response(status_code=499)  # nobody is there to read it
            collecting.result()
        finally:
            for task in (collecting, leaving):
                task.cancel()
        self._finished(200)
        return JSONResponse(self._reply.whole())

    async def _collect(self) -> None:
        async for event in self._job.events():
            self._time(event)
            self._reply.chunks(event)

    async def _frames(self) -> AsyncIterator[bytes]:
        data, n_left = b"", len(self._job.sequences)
        try:
            async for batch in self._job.batches():
                for event in batch:
                    self._time(event)
                    data += self._reply.frame(event)
                    n_left -= event.last
                if n_left == 0:
                    self._finished(200)  # logged before the last byte goes out
                    data += sse.frame(self._reply.usage_chunk()) if self._wants("usage") else b""
                    data += sse.DONE
                if data:
                    yield data
                    data = b""
        except failures.Failure as failure:
            self._finished(failure.status, error=failure.code)
            yield data + sse.frame(failure.body) + sse.DONE

    def _wants(self, extra: Literal["usage", "origins"]) -> bool:
        options = self._body.stream_options
        return options is not None and bool(getattr(options, f"include_{extra}"))

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
            about = {"status": status, "stream": self._body.stream, **more}
            self._service.finished(self._job, self._plan, self._reply.id, about)

    def _leave(self) -> None:
        """However it ended: free the slots, and log a client that went away."""
        self._job.cancel()
        self._finished(499)
