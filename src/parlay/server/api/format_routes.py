"""The other formats: Anthropic's messages and OpenAI's responses, answered as chat is.

Knows HTTP and the service; bodies and events are translated in `web/formats`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from pydantic import ValidationError
from starlette.responses import Response

from parlay.routing import Endpoint
from parlay.server.api.chat import ChatChoice
from parlay.server.api.exchange import Exchange
from parlay.server.api.format_reply import FormatReply
from parlay.server.api.openai_routes import service_of
from parlay.server.api.planner import Plan
from parlay.server.api.reply import Numbers
from parlay.server.lifecycle.service import Service
from parlay.web import failures
from parlay.web.formats import messages_body, responses_body
from parlay.web.formats.messages_answer import MessageWriter
from parlay.web.formats.messages_body import CountRequest, MessagesRequest
from parlay.web.formats.responses_answer import ResponseWriter
from parlay.web.formats.responses_body import ResponsesRequest
from parlay.web.formats.translation import Translated, Writer
from parlay.web.schema import ChatRequest
from parlay.web.security import given_key
from parlay.web.unknown import Told

router = APIRouter()


@router.post("/v1/messages", summary="Anthropic's messages", response_model=None)
async def messages(request: Request, body: MessagesRequest) -> Response:
    service = service_of(request)
    asked = FormatRequest(service, "messages", messages_body.to_chat(body), request)
    plan = await asked.plan()
    return await asked.answer(plan, MessageWriter(body.model or service.model_name))


@router.post("/v1/messages/count_tokens", summary="How many tokens a conversation has")
async def count_tokens(request: Request, body: CountRequest) -> dict[str, int]:
    chat = chat_of(messages_body.to_chat(body).chat)
    prompt = await asyncio.to_thread(service_of(request).planner.prompt, chat)
    return {"input_tokens": len(prompt.tokens)}


@router.post("/v1/responses", summary="OpenAI's responses", response_model=None)
async def responses(request: Request, body: ResponsesRequest) -> Response:
    service, key = service_of(request), given_key(dict(request.scope["headers"]))
    before = _before(service, key, body.previous_response_id)
    translated = responses_body.to_chat(body, before)
    asked = FormatRequest(service, "responses", translated, request)
    plan = await asked.plan()
    stored = bool(service.responses.size) and body.store is not False
    if body.store and not stored:
        plan = replace(plan, told=(*plan.told, Told("store", "nothing is kept here (ignored)")))
    model = body.model or service.model_name
    writer = ResponseWriter(body, model, custom_tools=translated.custom_tools, stored=stored)

    def keep() -> None:
        turns = [*before, *responses_body.messages_of(body.input), writer.message()]
        service.responses.put(key, turns, writer.response)

    return await asked.answer(plan, writer, keep if stored else None)


@router.get("/v1/responses/{response_id}", summary="A response that was kept")
async def stored_response(request: Request, response_id: str) -> dict[str, Any]:
    service, key = service_of(request), given_key(dict(request.scope["headers"]))
    found = service.responses.response(key, response_id)
    if found is None:
        raise _not_kept(service, response_id)
    return found


@router.delete("/v1/responses/{response_id}", summary="Forget a response that was kept")
async def forget_response(request: Request, response_id: str) -> dict[str, Any]:
    service, key = service_of(request), given_key(dict(request.scope["headers"]))
    if not service.responses.drop(key, response_id):
        raise _not_kept(service, response_id)
    return {"id": response_id, "object": "response", "deleted": True}


def _not_kept(service: Service, response_id: str) -> failures.Failure:
    message = f"the response {response_id[:60]!r} is not known here"
    if not service.responses.size:
        message = "no response is kept here; set server.stored_responses"
    return failures.Failure(404, message, code="response_not_found")


def _before(service: Service, key: str, response_id: str | None) -> list[dict[str, Any]]:
    """The conversation that a response goes on from."""
    if response_id is None:
        return []
    found = service.responses.turns(key, response_id)
    if found is not None:
        return found
    message = f"the response {response_id[:60]!r} is not known here; send the whole conversation"
    if not service.responses.size:
        message = "previous_response_id needs server.stored_responses; send the whole conversation"
    raise failures.Failure(
        400, message, code="previous_response_not_found", param="previous_response_id"
    )


class FormatRequest:
    """A request in such a format."""

    def __init__(
        self, service: Service, endpoint: Endpoint, translated: Translated, request: Request
    ) -> None:
        self._service = service
        self._endpoint: Endpoint = endpoint
        self._translated = translated
        self._request = request
        self.chat = chat_of(translated.chat)

    async def plan(self) -> Plan:
        """Understood as chat is; what the format left out is told with the rest."""
        planner, headers = self._service.planner, dict(self._request.headers)
        plan = await asyncio.to_thread(planner.chat, self.chat, headers, self._endpoint)
        told = planner.unknown(self._translated.unknown)
        return replace(plan, told=(*self._translated.told, *told, *plan.told))

    async def answer(
        self, plan: Plan, writer: Writer, keep: Callable[[], None] | None = None
    ) -> Response:
        service = self._service
        choice = ChatChoice.of(service, plan, self.chat)
        numbers = partial(Numbers, plan, baseline=service.observer.baseline)
        reply = partial(FormatReply, writer, choice, numbers, keep or _keep_nothing)
        exchange = Exchange(service, plan, self.chat.model, self.chat.stream, reply)
        return await exchange.respond(self._request)


def chat_of(chat: dict[str, Any]) -> ChatRequest:
    """A format's body as chat's; n is 1: these formats hold one answer."""
    try:
        return ChatRequest.model_validate({**chat, "n": 1})
    except ValidationError as error:
        raise failures.of_validation(error.errors(), sorted(ChatRequest.model_fields)) from None


def _keep_nothing() -> None:
    """Most answers are not kept."""
