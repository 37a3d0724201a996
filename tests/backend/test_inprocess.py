"""The way from the worker's thread to the event loop: in order, complete, and with few wake-ups."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

from parlay.ask import Reading, Reply
from parlay.backend.inprocess import Mailbox
from tests.serving import PATIENCE_S


class Reader:
    def __init__(self) -> None:
        self.items: list[int] = []
        self.closed = False

    def arrive(self, replies: Sequence[Reply]) -> None:
        self.items += [reply.n_read for reply in replies if isinstance(reply, Reading)]

    def close(self) -> None:
        self.closed = True


def item(i: int) -> list[Reply]:
    return [Reading(0, i, i, 0)]


class CountingLoop:
    """A loop that runs what it was woken for when the test says so."""

    def __init__(self) -> None:
        self.callbacks: list[object] = []

    def call_soon_threadsafe(self, callback: object) -> None:
        self.callbacks.append(callback)

    def run(self) -> None:
        callbacks, self.callbacks = self.callbacks, []
        for callback in callbacks:
            callback()  # type: ignore[operator]


def test_everything_that_came_meanwhile_costs_one_wake_up() -> None:
    loop, first, second = CountingLoop(), Reader(), Reader()
    mailbox = Mailbox(loop)  # type: ignore[arg-type]
    for i in range(4):
        mailbox.put(first if i % 2 else second, item(i))
    assert len(loop.callbacks) == 1
    loop.run()
    assert first.items == [1, 3] and second.items == [0, 2]
    mailbox.put(first, item(5))
    assert len(loop.callbacks) == 1


def test_nothing_is_lost_between_two_threads() -> None:
    async def main() -> list[int]:
        reader, n = Reader(), 20_000
        mailbox = Mailbox(asyncio.get_running_loop())

        def fill() -> None:
            for i in range(n):
                mailbox.put(reader, item(i))

        thread = threading.Thread(target=fill)
        thread.start()
        while len(reader.items) < n:
            await asyncio.sleep(0.001)
        thread.join()
        return reader.items

    assert asyncio.run(asyncio.wait_for(main(), PATIENCE_S)) == list(range(20_000))


def test_who_waits_on_a_loop_that_has_ended_is_told() -> None:
    loop, reader = asyncio.new_event_loop(), Reader()
    loop.close()
    Mailbox(loop).put(reader, item(1))
    assert reader.closed
