"""The gateway's routes: OpenAI's, and those for whoever runs it.

Knows HTTP and the gateway; never shows a prompt, and addresses only to those with a key.
"""

from __future__ import annotations

import json
import time
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, ValidationError
from starlette.responses import JSONResponse, Response

from parlay.front import errors as failures
from parlay.front.bodies import NOT_JSON
from parlay.front.doors import messages as messages_body
from parlay.front.doors import responses as responses_body
from parlay.front.doors.door import Writer, new_id
from parlay.front.doors.messages import MessagesRequest
from parlay.front.doors.messages_writer import MessageWriter
from parlay.front.doors.responses import ResponsesRequest, echo
from parlay.front.doors.responses_writer import ResponseWriter
from parlay.front.doors.translation import Translated
from parlay.front.remote.server import Server as Upstream
from parlay.gateway.exchange import Exchange
from parlay.gateway.service import Gateway
from parlay.routing import Endpoint

Kind = TypeVar("Kind", bound=BaseModel)
_ELSEWHERE = (
    "/v1/embeddings",
    "/v1/messages/count_tokens",
    "/tokenize",
    "/detokenize",
    "/infill",
    "/apply-template",
)


def gateway_of(request: Request) -> Gateway:
    gateway: Gateway = request.app.state.service
    return gateway


def router(metrics_endpoint: str) -> APIRouter:
    """All of them; where the JSON metrics are is the deployment's choice."""
    found = APIRouter()
    found.post("/v1/chat/completions", response_model=None)(chat_completions)
    found.post("/v1/completions", response_model=None)(completions)
    found.post("/v1/messages", response_model=None)(messages)
    found.post("/v1/responses", response_model=None)(responses)
    found.get("/v1/models")(models)
    found.get("/health")(health)
    found.get("/v1/health", include_in_schema=False)(health)
    found.get("/metrics", response_class=Response)(metrics)
    found.get("/slots")(slots)
    for path in _ELSEWHERE:
        found.post(path, status_code=501, response_model=None)(not_here)
    found.get(metrics_endpoint)(speculative_metrics)
    return found


async def chat_completions(request: Request) -> Response:
    """Answer a conversation."""
    return await _answer(request, "chat")


async def completions(request: Request) -> Response:
    """Continue a text."""
    return await _answer(request, "completions")


async def messages(request: Request) -> Response:
    """Anthropic's messages."""
    gateway, original = gateway_of(request), await _object(request)
    body = _valid(MessagesRequest, original)
    writer = MessageWriter(new_id("msg", "_"), body.model or gateway.model_name, 0)
    return await _through(request, "messages", original, messages_body.to_chat(body), writer)


async def responses(request: Request) -> Response:
    """OpenAI's responses."""
    gateway, original = gateway_of(request), await _object(request)
    body = _valid(ResponsesRequest, original)
    translated = responses_body.to_chat(body)
    model = body.model or gateway.model_name
    base = {**echo(body), "id": new_id("resp", "_"), "model": model, "store": False}
    writer = ResponseWriter(base, translated.custom_tools, lambda _writer: None)
    return await _through(request, "responses", original, translated, writer)


async def _through(
    request: Request,
    endpoint: Endpoint,
    original: dict[str, Any],
    translated: Translated,
    writer: Writer,
) -> Response:
    """Another format than chat's. What is not known here the engine may, and is passed on."""
    gateway = gateway_of(request)
    extra = {name: original[name] for name in translated.unknown if name in original}
    chat = {**translated.chat, **extra}
    ours = ("speculation", "speculative")
    original = {name: value for name, value in original.items() if name not in ours}
    asked = gateway.open_asking().understand(endpoint, chat, dict(request.headers), original)
    return await Exchange(gateway, asked, writer).respond(request)


async def _answer(request: Request, endpoint: Endpoint) -> Response:
    gateway = gateway_of(request)
    asked = gateway.open_asking().understand(
        endpoint, await _object(request), dict(request.headers)
    )
    return await Exchange(gateway, asked).respond(request)


async def _object(request: Request) -> dict[str, Any]:
    """What was sent; an empty object is one, and lacks what the route will name."""
    try:
        body = json.loads(await request.body())
    except (ValueError, RecursionError):
        raise NOT_JSON from None
    if not isinstance(body, dict):
        raise NOT_JSON
    return body


def _valid(kind: type[Kind], body: dict[str, Any]) -> Kind:
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise failures.of_validation(error.errors(), sorted(kind.model_fields)) from None


async def models(request: Request) -> dict[str, Any]:
    """The one model, under its alias."""
    gateway = gateway_of(request)
    names = gateway.deployment.model.alias or (gateway.model_name,)
    common = {"object": "model", "created": int(gateway.started), "owned_by": "parlay"}
    return {"object": "list", "data": [{"id": name, **common} for name in names]}


async def health(request: Request) -> JSONResponse:
    """Whether requests are taken: 503 while draining, or with nobody to answer them."""
    gateway = gateway_of(request)
    servers = gateway.pools.all
    n_up = sum(up.health.takes for up in servers)
    status = "draining" if gateway.draining else "ok" if n_up else "no_upstream"
    body = {"status": status, "model": gateway.model_name, "up": n_up, "servers": len(servers)}
    return JSONResponse(body, status_code=200 if status == "ok" else 503)


async def metrics(request: Request) -> Response:
    """Prometheus metrics."""
    return Response(gateway_of(request).metrics.text(), media_type=CONTENT_TYPE_LATEST)


async def slots(request: Request) -> list[dict[str, Any]]:
    """Every server, and what it is doing."""
    return [_slot(i, up) for i, up in enumerate(gateway_of(request).pools.all)]


def _slot(i: int, up: Upstream) -> dict[str, Any]:
    return {
        "id": i,
        "pool": up.pool.name,
        "server": up.url,
        "engine": up.engine,
        "model": up.model,
        "speculative": up.pool.speculative,
        "state": up.health.state,
        "reason": up.health.reason,
        "is_processing": up.in_flight > 0,
        "in_flight": up.in_flight,
        "max_concurrent": up.pool.max_concurrent,
        "answers": up.n_answered,
        "failures": up.n_failed,
        "ejections": up.health.n_ejections,
    }


async def speculative_metrics(request: Request) -> dict[str, Any]:
    """Everything about speculation as one JSON object."""
    gateway = gateway_of(request)
    pools = gateway.pools
    return {
        **gateway.tally().as_dict(),
        "routes": _routes(gateway),
        "servers": [_server(up) for up in pools.all],
        "alerts": [alert.as_dict() for alert in gateway.alerts.active.values()],
        "queue": {"slots": pools.n_places, "waiting": pools.n_waiting},
        "retries": gateway.n_retries,
        "uptime_s": round(time.time() - gateway.started, 3),
    }


def _routes(gateway: Gateway) -> list[dict[str, Any]]:
    return [
        {
            "route": name,
            "stream": streamed,
            "speculates": route.leader if route.compared else None,
            "ms_per_token": {
                "speculative": _ms(route.sides[True].s_per_token),
                "plain": _ms(route.sides[False].s_per_token),
            },
            "answers": {
                "speculative": route.sides[True].n_answers,
                "plain": route.sides[False].n_answers,
            },
        }
        for (name, streamed), route in sorted(gateway.routes.items())
    ]


def _server(up: Upstream) -> dict[str, Any]:
    page = up.page.last
    told = None
    if page is not None:
        told = {"drafts": page.drafts, "drafted": page.drafted, "accepted": page.accepted}
    by_answers = up.told.as_dict() if up.told.n_told else None
    return {**_slot(0, up), "counters": told, "by_answers": by_answers}


async def not_here() -> Response:
    """Refused: ask the engine itself."""
    raise failures.Failure(
        501, "a gateway relays answers only; ask an engine for this", code="not_supported"
    )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 3)
