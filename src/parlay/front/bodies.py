"""A request's body, parsed once: sound JSON of the route's own shape, or a reason why not.

NaN, numbers without bounds and half characters are no JSON. Knows the shapes, not what they ask
for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from fastapi import Request
from pydantic import BaseModel, ValidationError

from parlay.front import errors
from parlay.front.errors import Failure

Kind = TypeVar("Kind", bound=BaseModel)
Made = TypeVar("Made")
NOT_JSON = Failure(
    400, "send one JSON object, with Content-Type: application/json", code="invalid_json"
)
# Bytes of a body that is parsed on the event loop: it takes a millisecond.
_SMALL = 1 << 16


async def read(request: Request, kind: type[Kind]) -> Kind:
    """The body of a request."""
    return await understood(request, kind, lambda body: body)


async def understood(
    request: Request, kind: type[Kind], understand: Callable[[Kind], Made]
) -> Made:
    """What the body of a request means; of a large one found out beside the event loop."""
    raw = await request.body()

    def work() -> Made:
        return understand(parsed(raw, kind))

    return work() if len(raw) <= _SMALL else await asyncio.to_thread(work)


def parsed(raw: bytes, kind: type[Kind]) -> Kind:
    """The same of bytes; raises what is wrong with them."""
    try:
        return kind.model_validate(sound(raw))
    except ValidationError as error:
        found = [{**one, "loc": ("body", *one["loc"])} for one in error.errors()]
        raise errors.of_validation(found, sorted(kind.model_fields)) from None


def schema_of(kind: type[BaseModel], path: str) -> dict[str, Any]:
    """What OpenAPI says of a POST route that reads its body here."""
    # Shared parts stay with the route: their place in the document, as a JSON pointer.
    place = f"#/paths/{path.replace('~', '~0').replace('/', '~1')}/post"
    place += "/requestBody/content/application~1json/schema/$defs/{model}"
    content = {"application/json": {"schema": kind.model_json_schema(ref_template=place)}}
    return {"requestBody": {"required": True, "content": content}}


def sound(raw: bytes) -> Any:
    """JSON and nothing more."""
    if not raw:
        raise NOT_JSON
    try:
        return msgspec.json.decode(raw)
    except UnicodeDecodeError:
        message = "the body is not valid text; send it as UTF-8"
        raise Failure(400, message, code="invalid_json") from None
    except RecursionError as error:
        raise errors.of(error) from None
    except msgspec.DecodeError as error:
        reason = str(error).partition(" - at ")[0]
        message = f"the body is not valid JSON: {reason[:100]}"
        raise Failure(400, message, code="invalid_json") from None
