"""Server-sent events: a response that sends chunks as they come and notices who has left.

Knows ASGI; what the chunks say is not its business.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

DONE = b"data: [DONE]\n\n"
WAITING = b": the prompt is being read\n\n"  # a comment: no event
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


def frame(*chunks: dict[str, Any]) -> bytes:
    """Chunks as events, to be sent in one write."""
    return b"".join(b"data: " + dumps(chunk).encode() + b"\n\n" for chunk in chunks)


def event(kind: str, data: dict[str, Any]) -> bytes:
    """One event with a name, for streams that carry several kinds."""
    return b"event: " + kind.encode() + b"\n" + frame(data)


dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def named(kind: str, data: dict[str, Any]) -> str:
    """One event whose name is also its data's type, as text."""
    return f"event: {kind}\ndata: {dumps({'type': kind, **data})}\n\n"


class EventStream(Response):
    """Streams frames; when the client goes, it ends at once."""

    media_type = "text/event-stream"

    def __init__(
        self,
        frames: AsyncIterator[bytes],
        on_end: Callable[[], None],
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(headers={**_HEADERS, **(headers or {})})
        del self.headers["content-length"]
        self._frames = frames
        self._on_end = on_end  # also where the frames were never begun

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send_all(send))
        leaving = asyncio.create_task(gone(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            await _stop(sending, leaving)

    async def _send_all(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        try:
            await send(start)
            async for data in self._frames:
                await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._on_end()


async def gone(receive: Receive) -> None:
    """Returns when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _stop(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
