"""OpenAI's routes: chat completions, completions, models.

Knows HTTP and the service; what a chunk looks like is the reply's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from starlette.responses import Response

from parlay.server.api.chat import ChatChoice
from parlay.server.api.completion import CompletionChoice
from parlay.server.api.exchange import Exchange, Replying
from parlay.server.api.infill_reply import InfillReply
from parlay.server.api.job import Job
from parlay.server.api.planner import Plan, Planner
from parlay.server.api.reply import Reply
from parlay.server.lifecycle.service import Service
from parlay.web import failures
from parlay.web.schema import ChatRequest, CompletionRequest, InfillRequest, TemplateRequest

router = APIRouter()
B = TypeVar("B", ChatRequest, CompletionRequest, InfillRequest)


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


@router.post("/v1/chat/completions", summary="Answer a conversation", response_model=None)
async def chat_completions(request: Request, body: ChatRequest) -> Response:
    return await _answer(request, body, Planner.chat, _chat_reply)


@router.post("/v1/completions", summary="Continue a text", response_model=None)
async def completions(request: Request, body: CompletionRequest) -> Response:
    return await _answer(request, body, Planner.completion, _completion_reply)


@router.post("/infill", summary="Fill a gap, with llama.cpp's names", response_model=None)
async def infill(request: Request, body: InfillRequest) -> Response:
    return await _answer(request, body, Planner.infill, _infill_reply)


async def _answer(
    request: Request,
    body: B,
    understand: Callable[[Planner, B, dict[str, str]], Plan],
    begin: Callable[[Service, Plan, B], Callable[[Job], Replying]],
) -> Response:
    """Understood in a thread, begun, and followed to its end."""
    service = service_of(request)
    plan = await asyncio.to_thread(understand, service.planner, body, dict(request.headers))
    reply = begin(service, plan, body)
    return await Exchange(service, plan, body.model, body.stream, reply).respond(request)


def _chat_reply(service: Service, plan: Plan, body: ChatRequest) -> Callable[[Job], Reply]:
    choices = [ChatChoice.of(service, plan, body) for _ in plan.requests]
    return partial(Reply, service, plan, choices, body, "chatcmpl", "chat.completion.chunk")


def _completion_reply(
    service: Service, plan: Plan, body: CompletionRequest
) -> Callable[[Job], Reply]:
    vocabulary, wants = service.engine.model.vocabulary, body.logprobs is not None
    choices = [CompletionChoice(vocabulary, logprobs=wants) for _ in plan.requests]
    return partial(Reply, service, plan, choices, body, "cmpl", "text_completion")


def _infill_reply(
    service: Service, plan: Plan, _body: InfillRequest
) -> Callable[[Job], InfillReply]:
    return partial(InfillReply, service, plan)


@router.post("/apply-template", summary="A conversation as the model reads it")
async def apply_template(request: Request, body: TemplateRequest) -> dict[str, str]:
    chat = ChatRequest.model_validate(body.model_dump(include=set(TemplateRequest.model_fields)))
    return {"prompt": await asyncio.to_thread(service_of(request).planner.text, chat)}


@router.get("/v1/models", summary="The one model that is served")
async def models(request: Request) -> dict[str, Any]:
    return {"object": "list", "data": _models(request)}


@router.get("/v1/models/{name:path}", summary="The same, by its name")
async def model(request: Request, name: str) -> dict[str, Any]:
    found = _models(request)
    for each in found:
        if each["id"] == name:
            return each
    known = ", ".join(each["id"] for each in found)
    raise failures.Failure(404, f"no model {name!r} here; there is {known}", code="model_not_found")


def _models(request: Request) -> list[dict[str, Any]]:
    service = service_of(request)
    names = service.deployment.model.alias or (service.model_name,)
    common = {"object": "model", "created": int(service.started), "owned_by": "parlay"}
    return [{"id": name, **common} for name in names]


@router.post("/v1/embeddings", summary="Refused", status_code=501, response_model=None)
async def embeddings() -> Response:
    raise failures.Failure(
        501,
        "this server generates text and computes no embeddings; use an embedding model's server",
        code="not_supported",
    )
