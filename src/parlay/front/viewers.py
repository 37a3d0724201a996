"""Those who watch: one snapshot a tick for all of them, and for the slow ones only the latest.

Knows frames of bytes, not what they say. While nobody watches, nothing is computed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable

from parlay.front.errors import unavailable

log = logging.getLogger("parlay.server")
MAX_VIEWERS = 100
FULL = unavailable(f"{MAX_VIEWERS} viewers are watching already; close one", "too_many_viewers")


class Viewer:
    """One who watches. Of every kind of frame it holds the latest, so it needs no queue."""

    def __init__(self) -> None:
        self._waiting: dict[str, bytes] = {}
        self._news = asyncio.Event()
        self._over = False

    def put(self, kind: str, frame: bytes) -> None:
        self._waiting[kind] = frame
        self._news.set()

    def end(self) -> None:
        self._over = True
        self._news.set()

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """What is new, whenever the viewer is ready for it."""
        while True:
            await self._news.wait()
            self._news.clear()
            found, self._waiting = b"".join(self._waiting.values()), {}
            if found:
                yield found
            if self._over:
                return


class Viewers:
    """All who watch one server."""

    def __init__(self, frame: Callable[[int], Awaitable[bytes | None]], tick_s: float) -> None:
        """`frame`: a tick's, for so many viewers; None ends the watching."""
        self._frame = frame
        self._tick_s = tick_s
        self._viewers: set[Viewer] = set()
        self._ticking: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._viewers)

    def join(self, *first: tuple[str, bytes]) -> Viewer:
        """Another one, with what it must know before the next tick."""
        if len(self._viewers) >= MAX_VIEWERS:
            raise FULL
        viewer = Viewer()
        for kind, frame in first:
            viewer.put(kind, frame)
        self._viewers.add(viewer)
        if self._ticking is None:
            self._ticking = asyncio.get_running_loop().create_task(self._tick())
        return viewer

    def leave(self, viewer: Viewer) -> None:
        self._viewers.discard(viewer)

    def tell(self, kind: str, frame: bytes) -> None:
        """Everybody, before the next tick."""
        for viewer in self._viewers:
            viewer.put(kind, frame)

    async def _tick(self) -> None:
        try:
            while self._viewers:
                frame = await self._frame(len(self._viewers))
                if frame is None:
                    break
                self.tell("snapshot", frame)
                await asyncio.sleep(self._tick_s)
        except Exception:  # whoever watches sees the end of the stream and comes again
            log.exception("the live figures failed")
        finally:
            self._ticking = None
            for viewer in self._viewers:
                viewer.end()
