"""The end of a server: nothing that was taken in stays open."""

from __future__ import annotations

import asyncio
import select
import socket

from parlay.front.life import take_no_more
from tests.serving import PATIENCE_S, unclosed


async def close_in_the_turn_after_a_connection_was_taken() -> int:
    """How many connections were made."""
    made: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: made.append(writer), "127.0.0.1", 0)
    listener = server.sockets[0]
    with socket.create_connection(listener.getsockname()):
        assert select.select([listener.fileno()], [], [], PATIENCE_S)[0]  # it has arrived
        await asyncio.sleep(0)  # the loop sees it
        await asyncio.sleep(0)  # and takes it; its transport is made in the next turn
        await take_no_more([server])
        server.close()
        for writer in made:
            writer.close()
            await writer.wait_closed()
    return len(made)


def test_a_connection_taken_right_before_the_end_is_made_and_can_be_closed() -> None:
    with unclosed() as told:
        assert asyncio.run(close_in_the_turn_after_a_connection_was_taken()) == 1
    assert not told


def test_a_server_that_was_closed_already_takes_nobody() -> None:
    async def run() -> None:
        server = await asyncio.start_server(lambda _, __: None, "127.0.0.1", 0)
        server.close()
        await take_no_more([server])

    asyncio.run(run())
