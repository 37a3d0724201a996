"""The server's side of being supervised: it says when it is ready, and adopts who waited for it.

Knows uvicorn and the supervisor's notes; knows no engine.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from typing import Any

import uvicorn

from parlay.web.supervisor_link import HEADED, Note, receive, send

CHILD = "PARLAY_SUPERVISED"  # listener, channel, number of deaths before this life


class Supervised:
    """What the supervisor gave this process."""

    def __init__(self, given: str) -> None:
        listener, channel, n_deaths = map(int, given.split(","))
        self.listener = socket.socket(fileno=listener)
        self.channel = socket.socket(fileno=channel)
        self.channel.settimeout(5.0)
        self.n_deaths = n_deaths
        self._adopting: set[asyncio.Task[None]] = set()

    @classmethod
    def here(cls) -> Supervised | None:
        """What this process was started with, if by a supervisor."""
        given = os.environ.pop(CHILD, None)
        return None if given is None else cls(given)

    def begin(self, server: uvicorn.Server) -> None:
        """On the loop, about to serve."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self.channel, self._hear, server)
        try:
            send(self.channel, Note("ready"))
        except OSError:  # it was killed while the engine was loaded
            self._end(server)

    def _end(self, server: uvicorn.Server) -> None:
        """Nobody is left to hold the address. At once: who killed the supervisor meant us."""
        asyncio.get_running_loop().remove_reader(self.channel)
        for _ in range(2):
            server.handle_exit(signal.SIGTERM, None)

    def _hear(self, server: uvicorn.Server) -> None:
        note = receive(self.channel)
        if note is None or note.fd is None:
            self._end(server)
            return
        client = socket.socket(fileno=note.fd)
        client.setblocking(False)
        headed = bool(note.about.get("headed"))
        task = asyncio.ensure_future(_adopt(server, client, note.request, headed))
        self._adopting.add(task)  # the loop itself keeps no reference
        task.add_done_callback(self._adopting.discard)


async def _adopt(
    server: uvicorn.Server, client: socket.socket, request: bytes, headed: bool
) -> None:
    """A connection that another process accepted; what it asked is asked again."""
    config = server.config

    def protocol() -> Any:
        made: Any = config.http_protocol_class
        return made(config=config, server_state=server.server_state, app_state={})

    transport, made = await asyncio.get_running_loop().connect_accepted_socket(protocol, client)
    if headed:
        made.transport = made.flow._transport = _Headless(transport)
    if request:
        mark = b"\r\n" + HEADED + b": 1\r\n\r\n" if headed else b"\r\n\r\n"
        made.data_received(request.replace(b"\r\n\r\n", mark, 1))


class _Headless:
    """A transport to someone who has been sent the head of an answer already."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._head: bytes | None = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if self._head is not None:
            self._head += data
            _, ended, data = self._head.partition(b"\r\n\r\n")
            if not ended:
                return
            self._head = None
        if data:
            self._transport.write(data)
