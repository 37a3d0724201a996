"""A server that a supervisor started: it ends with whoever holds its address."""

from __future__ import annotations

import asyncio
import socket

import uvicorn

from parlay.web.supervised import Supervised


class Ending(uvicorn.Server):
    """Counts how often it is told to end."""

    n_signals = 0

    def handle_exit(self, sig: int, frame: object) -> None:
        self.n_signals += 1


async def _ignore(*_: object) -> None:
    """An app that answers nobody."""


def test_a_server_that_is_ready_after_its_supervisor_was_killed_ends_and_raises_nothing() -> None:
    listener, (ours, theirs) = socket.socket(), socket.socketpair()
    supervised = Supervised(f"{listener.detach()},{ours.detach()},0")
    theirs.close()
    server = Ending(uvicorn.Config(_ignore))

    async def begin() -> None:
        supervised.begin(server)

    asyncio.run(begin())
    assert server.n_signals == 2  # once to drain, once for at once
    supervised.listener.close()
    supervised.channel.close()
