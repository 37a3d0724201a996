"""One engine process: started, heard, told, ended. Its death is heard like any of its words.

Knows processes and the wire; which requests it has, and what follows its death, others know.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from parlay.backend import wire

log = logging.getLogger("parlay.server")
COMMAND = (sys.executable, "-m", "parlay.backend")
# From its socket's end to its exit; whoever takes longer hangs in something that does not end.
_LAST_S = 5.0

Hear = Callable[["EngineProcess", wire.FromEngine], None]
Gone = Callable[["EngineProcess", int], None]


class Child(Protocol):
    """A process, as far as it is needed here."""

    def poll(self) -> int | None:
        """Its exit status, once it has ended."""

    def kill(self) -> None: ...

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status; raises TimeoutExpired."""


Launch = Callable[[Sequence[str], socket.socket], Child]


def launch(command: Sequence[str], theirs: socket.socket) -> Child:
    """Its end of the socket is all that it inherits: with the front, that is closed."""
    return subprocess.Popen(
        [*command, str(theirs.fileno())],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,  # the front's own output is read by programs
        pass_fds=[theirs.fileno()],
        start_new_session=True,  # Ctrl-C is for the front, which drains
    )


class EngineProcess(asyncio.Protocol):
    """From `start` until `gone` was called with its exit status."""

    def __init__(self, hear: Hear, gone: Gone, launch: Launch = launch) -> None:
        self._hear, self._gone, self._launch = hear, gone, launch
        self._frames = wire.Frames()
        self._transport: asyncio.Transport | None = None
        self._process: Child | None = None
        self._ending: asyncio.Task[None] | None = None
        loop = asyncio.get_running_loop()
        self.started = self.heard = loop.time()  # when it last said anything at all
        self.ended = asyncio.Event()

    async def start(self, command: Sequence[str], hello: wire.Hello) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = self._launch(command, theirs)
        ours.setblocking(False)
        await asyncio.get_running_loop().create_connection(lambda: self, sock=ours)
        self.send(hello)

    def send(self, message: wire.FromFront) -> None:
        """Nothing where it is gone: its death will be told."""
        self.write(wire.frame(message))

    def write(self, frame: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame)

    def kill(self) -> None:
        """At once, whatever it does."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()

    async def stop(self, seconds: float) -> None:
        """Let it keep what it learned, but not for ever."""
        self.send(wire.Stop())
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.ended.wait(), seconds)
        self.kill()
        await self.ended.wait()

    # -- the socket -----------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self.heard = asyncio.get_running_loop().time()
        try:
            for body in self._frames.push(data):
                self._hear(self, wire.from_engine(body))
        except wire.WireError as error:
            log.error("the engine process said %s; it is ended", error)
            self.kill()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ending = asyncio.get_running_loop().create_task(self._end())

    async def _end(self) -> None:
        """Its exit status is there as soon as it is; who closed its socket and stays is killed."""
        process = self._process
        assert process is not None
        try:
            status = await asyncio.to_thread(process.wait, _LAST_S)
        except subprocess.TimeoutExpired:
            process.kill()
            status = await asyncio.to_thread(process.wait)
        self.ended.set()
        self._gone(self, status)
