"""From the worker's thread to the event loop: wakes it once for all that came meanwhile.

Knows jobs and events, not what is in them. On a CPU whose cores all compute, each wake-up takes one
of them away from the pass, so eight streams of one pass must not cost eight of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, Protocol, TypeVar

Item = TypeVar("Item")
Item_contra = TypeVar("Item_contra", contravariant=True)


class Receiver(Protocol[Item_contra]):
    """Somebody on the event loop who waits."""

    def arrive(self, item: Item_contra) -> None: ...

    def cancel(self) -> None: ...


class Mailbox(Generic[Item]):
    """Filled by one thread, emptied on the loop."""

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
