"""The end of a server: nothing that was taken in stays open."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings

from parlay.web.hosting import take_no_more


async def close_in_the_turn_after_a_connection_was_taken() -> int:
    """How many connections were made."""
    made: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: made.append(writer), "127.0.0.1", 0)
    with socket.create_connection(server.sockets[0].getsockname()):
        await asyncio.sleep(0)  # the loop sees it
        await asyncio.sleep(0)  # and takes it; its transport is made in the next turn
        await take_no_more([server])
        server.close()
        for writer in made:
            writer.close()
            await writer.wait_closed()
    return len(made)


def test_a_connection_taken_right_before_the_end_is_made_and_can_be_closed() -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert asyncio.run(close_in_the_turn_after_a_connection_was_taken()) == 1
        gc.collect()
    assert not [str(warning.message) for warning in told]


def test_a_server_that_was_closed_already_takes_nobody() -> None:
    async def run() -> None:
        server = await asyncio.start_server(lambda _, __: None, "127.0.0.1", 0)
        server.close()
        await take_no_more([server])

    asyncio.run(run())
