"""Connections: how many there may be, and how long one may say nothing or read nothing.

Knows uvicorn's protocol and sockets; what is said over them is others' business.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any

from starlette.types import Message, Send
from uvicorn.protocols.http.auto import AutoHTTPProtocol

_IDLE_S = 30.0  # without a whole request; twice as long at the most
LINGER_S = 5.0  # who was refused may go on sending: to hang up then resets the answer away
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 5\r\n"
    b"connection: close\r\n\r\n"
    b'{"error":{"message":"too many connections; try again in 5 s","type":"server_error",'
    b'"param":null,"code":"too_many_connections"}}'
)
Base: Any = AutoHTTPProtocol


class _Bounded(Base):  # type: ignore[misc]
    """uvicorn's protocol; how many and how long is a subclass's."""

    limit: int
    idle_s: float
    _watch: asyncio.TimerHandle | None = None
    _was_idle = False
    turned_away: set[_Bounded]  # told so, and not gone yet

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        if len(self.connections) - len(self.turned_away) > self.limit:
            self._turn_away(transport)
            return
        self._look_again()

    def _turn_away(self, transport: asyncio.Transport) -> None:
        transport.write(_FULL)
        if len(self.turned_away) >= self.limit:
            transport.close()
            return
        transport.write_eof()
        self.turned_away.add(self)
        self._watch = asyncio.get_running_loop().call_later(LINGER_S, transport.abort)

    def data_received(self, data: bytes) -> None:
        if self not in self.turned_away:
            super().data_received(data)

    def on_response_complete(self) -> None:
        self._was_idle = False  # seen idle twice with an answer in between is not idle
        super().on_response_complete()

    def _look_again(self) -> None:
        self._watch = asyncio.get_running_loop().call_later(self.idle_s, self._look)

    def _look(self) -> None:
        """Headers that never end are as idle as none."""
        idle = self.cycle is None or self.cycle.response_complete
        if (idle and self._was_idle) or self.transport.is_closing():
            self.transport.abort()
            return
        self._was_idle = idle
        self._look_again()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self.turned_away.discard(self)
        super().connection_lost(exc)


def bounded(limit: int, idle_s: float = _IDLE_S) -> type[asyncio.Protocol]:
    """uvicorn's protocol for so many connections at once."""
    mine = {"limit": limit, "idle_s": idle_s, "turned_away": set()}
    return type("Bounded", (_Bounded,), mine)


class Patience:
    """Ends a response whose client reads nothing for so long; costs two assignments a chunk."""

    def __init__(self, send: Send, limit_s: float) -> None:
        self._send = send
        self._limit_s = limit_s
        self._since: float | None = None  # when what is being sent was begun
        self._expired = False
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._timer = self._loop.call_later(limit_s, self._look)

    async def send(self, message: Message) -> None:
        self._since = self._loop.time()
        await self._send(message)
        self._since = None

    def __enter__(self) -> Patience:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """Whoever was let go for reading nothing is no failure of ours."""
        self._timer.cancel()
        return self._expired and kind is asyncio.CancelledError

    def _look(self) -> None:
        waited = 0.0 if self._since is None else self._loop.time() - self._since
        if waited >= self._limit_s:
            self._expired = True
            if self._task is not None:
                self._task.cancel()
            return
        self._timer = self._loop.call_later(self._limit_s - waited, self._look)
