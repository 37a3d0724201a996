"""Server-sent events: a response that sends chunks as they come and notices who has left.

Knows ASGI; what the chunks say is not its business.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from typing import Any

from msgspec.json import Encoder
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

DONE = "data: [DONE]\n\n"
WAITING = ": the prompt is being read\n\n"  # a comment: no event
_ENCODER = Encoder()
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


def frame(*chunks: dict[str, Any]) -> bytes:
    """Chunks as events, to be sent in one write."""
    return "".join(map(data, chunks)).encode()


def data(chunk: dict[str, Any]) -> str:
    """One event without a name, as text."""
    return f"data: {dumps(chunk)}\n\n"


def event(kind: str, content: dict[str, Any]) -> bytes:
    """One event with a name, for streams that carry several kinds."""
    return b"event: " + kind.encode() + b"\n" + frame(content)


def dumps(value: Any) -> str:
    """JSON, as short as it may be."""
    return _ENCODER.encode(value).decode()


def named(kind: str, content: dict[str, Any]) -> str:
    """One event whose name is also its data's type, as text."""
    return f"event: {kind}\ndata: {dumps({'type': kind, **content})}\n\n"


class EventStream(Response):
    """Streams frames; when the client goes, it ends at once."""

    media_type = "text/event-stream"

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        on_end: Callable[[], Awaitable[None] | None],
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(headers={**_HEADERS, **(headers or {})})
        del self.headers["content-length"]
        self._frames = frames
        self._on_end = on_end  # also where the frames were never begun

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await unless_gone(self._send_all(send), receive)

    async def _send_all(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        try:
            await send(start)
            async for body in self._frames:
                await send({"type": "http.response.body", "body": body, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await self._frames.aclose()
            ended = self._on_end()
            if ended is not None:
                await ended


async def unless_gone(work: Coroutine[Any, Any, None], receive: Receive) -> bool:
    """Work while the client is there; whether it came to its end. What it raises is raised."""
    working, leaving = asyncio.create_task(work), asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            return False
        working.result()
        return True
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    """Returns when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
