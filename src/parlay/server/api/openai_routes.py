"""OpenAI's routes: chat completions, completions, models.

Knows HTTP and the service; what a chunk looks like is the reply's business.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from parlay.server.api.chat import ChatChoice
from parlay.server.api.completion import CompletionChoice
from parlay.server.api.exchange import Exchange
from parlay.server.api.infill_reply import InfillReply
from parlay.server.api.reply import Reply
from parlay.server.lifecycle.service import Service
from parlay.web import failures
from parlay.web.schema import ChatRequest, CompletionRequest, InfillRequest, TemplateRequest

router = APIRouter()


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


@router.post("/v1/chat/completions", summary="Answer a conversation", response_model=None)
async def chat_completions(request: Request, body: ChatRequest) -> Response:
    service, headers = service_of(request), dict(request.headers)
    plan = await asyncio.to_thread(service.planner.chat, body, headers)
    choices = [ChatChoice.of(service, plan, body) for _ in plan.requests]
    reply = partial(Reply, service, plan, choices, body, "chatcmpl", "chat.completion.chunk")
    return await Exchange(service, plan, body.model, body.stream, reply).respond(request)


@router.post("/v1/completions", summary="Continue a text", response_model=None)
async def completions(request: Request, body: CompletionRequest) -> Response:
    service, headers = service_of(request), dict(request.headers)
    plan = await asyncio.to_thread(service.planner.completion, body, headers)
    vocabulary, wants = service.engine.model.vocabulary, body.logprobs is not None
    choices = [CompletionChoice(vocabulary, logprobs=wants) for _ in plan.requests]
    reply = partial(Reply, service, plan, choices, body, "cmpl", "text_completion")
    return await Exchange(service, plan, body.model, body.stream, reply).respond(request)


@router.post("/infill", summary="Fill a gap, with llama.cpp's names", response_model=None)
async def infill(request: Request, body: InfillRequest) -> Response:
    service, headers = service_of(request), dict(request.headers)
    plan = await asyncio.to_thread(service.planner.infill, body, headers)
    reply = partial(InfillReply, service, plan)
    return await Exchange(service, plan, body.model, body.stream, reply).respond(request)


@router.post("/apply-template", summary="A conversation as the model reads it")
async def apply_template(request: Request, body: TemplateRequest) -> dict[str, str]:
    chat = ChatRequest.model_validate(body.model_dump(include=set(TemplateRequest.model_fields)))
    return {"prompt": await asyncio.to_thread(service_of(request).planner.text, chat)}


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
