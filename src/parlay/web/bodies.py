"""A request's body: read whole, within a size and a time.

Knows bytes, not fields.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from starlette.types import Message, Receive

from parlay.front.bodies import sound
from parlay.front.errors import Failure

_READ_S = 60.0  # a body takes no longer, however slowly it is sent


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
    """Why a body is no sound JSON."""
    try:
        sound(body)
    except Failure as failure:
        return failure
    return None
