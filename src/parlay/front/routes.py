"""The routes of those who ask: the five doors, and what belongs to them.

Knows HTTP, the doors and a front; what goes on behind is told by the backend. A door is one line.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response

from parlay.ask import Answerer, Ask
from parlay.front import errors
from parlay.front.answers import Front, answer
from parlay.front.bodies import read, schema_of, understood
from parlay.front.doors.chat import ChatDoor
from parlay.front.doors.completions import CompletionsDoor
from parlay.front.doors.door import Door, Visit
from parlay.front.doors.infill import InfillDoor
from parlay.front.doors.messages import CountRequest, MessagesDoor, to_chat
from parlay.front.doors.responses import ResponsesDoor
from parlay.front.doors.translation import chat_of
from parlay.front.schema import (
    ChatRequest,
    DetokenizeRequest,
    TemplateRequest,
    TokenizeRequest,
)

DOORS: tuple[Door, ...] = (
    ChatDoor(),
    CompletionsDoor(),
    InfillDoor(),
    MessagesDoor(),
    ResponsesDoor(),
)
router = APIRouter()
READ_HERE: set[str] = set()  # paths of routes that read their own bodies
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class Serving(Front, Protocol):
    """A front, and what its other routes need."""

    started: float

    @property
    def model_names(self) -> tuple[str, ...]:
        """All that may be asked for."""


def front_of(request: Request) -> Serving:
    found: Serving = request.app.state.service
    return found


def backend_of(request: Request) -> Answerer:
    backend, _, _ = front_of(request).choose("")
    return backend


def _post(path: str, body: type[BaseModel], summary: str) -> Callable[[Handler], Handler]:
    """A route that reads its own body, once."""
    READ_HERE.add(path)
    return router.post(
        path, summary=summary, response_model=None, openapi_extra=schema_of(body, path)
    )


def _open(door: Door) -> None:
    async def knock(request: Request) -> Response:
        return await answer(request, door, front_of(request))

    knock.__name__ = type(door).__name__  # each has a name of its own in OpenAPI's document
    _post(door.path, door.body, door.summary)(knock)


for _door in DOORS:
    _open(_door)


@_post("/v1/messages/count_tokens", CountRequest, "How many tokens a conversation has")
async def count_tokens(request: Request) -> Response:
    def meant(body: CountRequest) -> Ask:
        return Ask(door="messages", **chat_of(to_chat(body).chat).asked())

    ask = await understood(request, CountRequest, meant)
    return JSONResponse({"input_tokens": await backend_of(request).count(ask)})


@router.get("/v1/responses/{response_id}", summary="A response that was kept")
async def stored_response(request: Request, response_id: str) -> dict[str, Any]:
    visit = front_of(request).visit(request)
    found = visit.stored.response(visit.key, response_id)
    if found is None:
        raise _not_kept(visit, response_id)
    return found


@router.delete("/v1/responses/{response_id}", summary="Forget a response that was kept")
async def forget_response(request: Request, response_id: str) -> dict[str, Any]:
    visit = front_of(request).visit(request)
    if not visit.stored.drop(visit.key, response_id):
        raise _not_kept(visit, response_id)
    return {"id": response_id, "object": "response", "deleted": True}


def _not_kept(visit: Visit, response_id: str) -> errors.Failure:
    message = f"the response {response_id[:60]!r} is not known here"
    if not visit.stored.size:
        message = "no response is kept here; set server.stored_responses"
    return errors.Failure(404, message, code="response_not_found")


@_post("/apply-template", TemplateRequest, "A conversation as the model reads it")
async def apply_template(request: Request) -> Response:
    def meant(body: TemplateRequest) -> Ask:
        given = body.model_dump(include=set(TemplateRequest.model_fields))
        return Ask(door="chat", **ChatRequest.model_validate(given).asked())

    ask = await understood(request, TemplateRequest, meant)
    return JSONResponse({"prompt": await backend_of(request).render(ask)})


@_post("/tokenize", TokenizeRequest, "Text to tokens")
async def tokenize(request: Request) -> Response:
    body = await read(request, TokenizeRequest)
    found = await backend_of(request).tokenize(
        body.content,
        add_special=body.add_special,
        parse_special=body.parse_special,
        with_pieces=body.with_pieces,
    )
    if not body.with_pieces:
        return JSONResponse({"tokens": [token.id for token in found]})
    return JSONResponse({"tokens": [{"id": token.id, "piece": token.piece} for token in found]})


@_post("/detokenize", DetokenizeRequest, "Tokens to text")
async def detokenize(request: Request) -> Response:
    body = await read(request, DetokenizeRequest)
    return JSONResponse({"content": await backend_of(request).detokenize(body.tokens)})


@router.get("/v1/models", summary="The models that are served")
async def models(request: Request) -> dict[str, Any]:
    return {"object": "list", "data": _models(request)}


@router.get("/v1/models/{name:path}", summary="One of them, by its name")
async def model(request: Request, name: str) -> dict[str, Any]:
    found = _models(request)
    for each in found:
        if each["id"] == name:
            return each
    known = ", ".join(each["id"] for each in found)
    raise errors.Failure(404, f"no model {name!r} here; there is {known}", code="model_not_found")


def _models(request: Request) -> list[dict[str, Any]]:
    front = front_of(request)
    common = {"object": "model", "created": int(front.started), "owned_by": "parlay"}
    return [{"id": name, **common} for name in front.model_names]


@router.post("/v1/embeddings", summary="Refused", status_code=501, response_model=None)
async def embeddings() -> Response:
    raise errors.Failure(
        501,
        "this server generates text and computes no embeddings; use an embedding model's server",
        code="not_supported",
    )
