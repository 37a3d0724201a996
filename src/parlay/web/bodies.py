"""A request's body: read whole, within a size and a time, and sound JSON before anyone parses it.

Python reads more than JSON: NaN, numbers without bounds, half characters. None of these comes past
here. Knows bytes, not fields.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from contextlib import suppress
from typing import Any, NoReturn

from starlette.types import Message, Receive

from parlay.web.failures import Failure, of

NOT_JSON = Failure(
    400, "send one JSON object, with Content-Type: application/json", code="invalid_json"
)
_MOST_DIGITS = 1000  # of a whole number
_READ_S = 60.0  # a body takes no longer, however slowly it is sent
# What may stand for something that is no JSON; inside of texts it may be harmless.
_SUSPICIOUS = re.compile(rb"NaN|Infinity|\\u[dD][89a-fA-F]|\d[eE]\+?\d{3}|\d{300}")


class TooLarge(Exception):
    """More came than is allowed."""


class Gone(Exception):
    """The client left, or took too long."""


async def read(receive: Receive, limit: int) -> bytes:
    """All of a body."""
    try:
        return await asyncio.wait_for(_read(receive, limit), _READ_S)
    except asyncio.TimeoutError:
        raise Gone from None


async def _read(receive: Receive, limit: int) -> bytes:
    found = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        found += message.get("body", b"")
        if len(found) > limit:
            raise TooLarge
        if not message.get("more_body", False):
            return bytes(found)


async def drain(receive: Receive, silent_s: float) -> None:
    """What still comes of a body that nobody wants, thrown away until nothing comes for so long."""
    until = asyncio.get_running_loop().time() + _READ_S
    more = True
    with suppress(asyncio.TimeoutError):
        while more and asyncio.get_running_loop().time() < until:
            more = (await asyncio.wait_for(receive(), silent_s)).get("more_body", False)


def replay(body: bytes, receive: Receive) -> Receive:
    """The body once more, for whoever reads it next; then whatever comes."""
    waiting = True

    async def again() -> Message:
        nonlocal waiting
        if waiting:
            waiting = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return again


def problem(body: bytes) -> Failure | None:
    """Why a body is no sound JSON; what is merely malformed its reader will say."""
    try:
        body.decode("utf-8")
        if _SUSPICIOUS.search(body):
            # Writing it again finds half characters, wherever they stand.
            json.dumps(parse(body), ensure_ascii=False).encode()
    except UnicodeError:
        return Failure(400, "the body is not valid text; send it as UTF-8", code="invalid_json")
    except json.JSONDecodeError:
        return None
    except RecursionError as error:
        return of(error)
    except ValueError as error:
        return Failure(400, f"the body is not valid JSON: {str(error)[:100]}", code="invalid_json")
    return None


def parse(body: bytes) -> Any:
    """JSON and nothing more."""
    return json.loads(body, parse_constant=_refuse, parse_float=_finite, parse_int=_whole)


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number; send finite numbers")


def _whole(text: str) -> int:
    if len(text) > _MOST_DIGITS:  # Python's own message is about Python
        raise ValueError(f"{text[:20]}... has {len(text)} digits; send smaller numbers")
    return int(text)


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:20]} is too large; send finite numbers")
    return value
