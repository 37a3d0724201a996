"""A job: the sequences of one HTTP request, from the queue to their last piece.

The bridge between the worker's thread and the event loop; knows nothing of OpenAI's formats.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from time import perf_counter
from typing import Generic, Protocol, TypeVar

from parlay.engine.engine import Engine
from parlay.engine.request import Request
from parlay.engine.sequence import Piece, Sequence

Item = TypeVar("Item")
Item_contra = TypeVar("Item_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class Event:
    """What one round brought to one of the sequences."""

    index: int
    pieces: tuple[Piece, ...]
    last: bool  # the sequence is over and fully counted
    at: float = 0.0  # when, on the worker's clock


class Job:
    """Sequences in the making. Leaving the loop over `events` early cancels them."""

    def __init__(self, mailbox: Mailbox[Event], time_limit_s: float) -> None:
        self.arrived = perf_counter()
        self.sequences: list[Sequence] = []
        self.expired = False
        self.logged = False
        self._mailbox = mailbox
        self._loop = asyncio.get_running_loop()
        self._inbox: list[Event] = []
        self._waiting: asyncio.Future[None] | None = None
        self._timer = self._loop.call_later(time_limit_s, self._expire)

    def start(self, engine: Engine, requests: Seq[Request]) -> None:
        """Hand every sequence to the worker."""
        try:
            for index, request in enumerate(requests):
                self.sequences.append(engine.submit(request, _Sink(self, index)))
        except Exception:
            self.cancel()
            raise

    @property
    def n_open(self) -> int:
        """Sequences that still hold a slot or a place in the queue."""
        return sum(not seq.retired for seq in self.sequences)

    async def events(self) -> AsyncIterator[Event]:
        """Every round of every sequence, in the order they happened."""
        async for batch in self.batches():
            for event in batch:
                yield event

    async def batches(self, patience_s: float | None = None) -> AsyncIterator[list[Event]]:
        """The same, all that has come since the last look at once; until the first has come, also
        nothing, whenever patience ends."""
        n_left = len(self.sequences)
        try:
            while n_left:
                if not self._inbox:
                    self._waiting = self._loop.create_future()
                    if patience_s is None:
                        await self._waiting
                    else:
                        await asyncio.wait({self._waiting}, timeout=patience_s)
                batch, self._inbox = self._inbox, []
                patience_s = patience_s if not batch else None
                n_left -= sum([event.last for event in batch])
                yield batch
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Give up what is not done: slots are free again within one round."""
        self._timer.cancel()
        for seq in self.sequences:
            seq.cancelled = True

    def _expire(self) -> None:
        self.expired = True
        self.cancel()

    def take(self, event: Event) -> None:
        """Called on the worker's thread."""
        self._mailbox.put(self, event)

    def arrive(self, item: Event) -> None:
        """The mailbox delivers it on the event loop."""
        self._inbox.append(item)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


@dataclass(frozen=True, slots=True)
class _Sink:
    job: Job
    index: int

    def __call__(self, seq: Sequence, pieces: Seq[Piece]) -> None:
        self.job.take(Event(self.index, tuple(pieces), seq.retired, perf_counter()))


class Receiver(Protocol[Item_contra]):
    """Somebody on the event loop who waits."""

    def arrive(self, item: Item_contra) -> None: ...

    def cancel(self) -> None: ...


class Mailbox(Generic[Item]):
    """Filled by the worker's thread, emptied on the loop, which is woken once for all that came.

    On a CPU whose cores all compute, each wake-up takes one of them away from the pass, so eight
    streams of one pass must not cost eight of them.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._items: deque[tuple[Receiver[Item], Item]] = deque()
        self._woken = False

    def put(self, receiver: Receiver[Item], item: Item) -> None:
        """Called on the worker's thread."""
        self._items.append((receiver, item))
        if self._woken:
            return
        self._woken = True
        try:
            self._loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:  # the event loop has ended: nobody waits for this any more
            receiver.cancel()

    def _deliver(self) -> None:
        self._woken = False  # first: what comes from now on wakes the loop again
        while self._items:
            receiver, item = self._items.popleft()
            receiver.arrive(item)
