"""One engine behind a socket: asks come in, one message a pass goes out.

Knows the wire and something that answers; loads nothing itself. The main thread runs an event loop
for whatever is asked, a thread reads the socket, and the engine's own thread writes what a pass
brought, at its end: nobody is woken for it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

from parlay.ask import Ask, Done, Facts, Refused, Reply
from parlay.backend import wire
from parlay.backend.link import Link
from parlay.errors import ParlayError
from parlay.refusals import refusal

log = logging.getLogger("parlay.server")
_PULSE_S = 1.0
_LAST_WORDS_S = 2.0
# A front that died takes its engine along: so long it may keep what it learned.
_ORPHAN_S = 1.0
Tell = Callable[[Sequence[Reply]], None]


class Served(Protocol):
    """Whatever answers in this process."""

    @property
    def facts(self) -> Facts:
        """Of its model."""

    async def begin(self, ask: Ask, tell: Tell) -> Callable[[], None]:
        """Understand a request and start it; returns what takes it back. `tell` hears `Accepted`
        first, or `Refused`; what comes of a pass it hears on the engine's thread."""

    async def call(self, name: wire.CallName, arguments: dict[str, Any]) -> Any:
        """One of the backend's other doings."""

    def passing_s(self) -> float:
        """For how long the pass under way has been; 0 where nothing is asked for."""

    def close(self) -> None:
        """Keep what was learned and free everything."""


class Post:
    """What was told and not sent yet: all of a pass is one message."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._parts: dict[int, list[Reply]] = {}
        self._lock = threading.Lock()
        self._passing = threading.local()

    def tell(self, number: int, replies: Sequence[Reply]) -> None:
        """Kept until the pass is over where the engine's thread tells it; else sent."""
        with self._lock:
            self._parts.setdefault(number, []).extend(replies)
        if not getattr(self._passing, "here", False):
            self.send()

    def begin_passes(self) -> None:
        """This thread makes passes and says when each is over."""
        self._passing.here = True

    def send(self) -> None:
        """The pass is over."""
        with self._lock:
            parts, self._parts = self._parts, {}
            if parts:
                self._link.send(wire.told([(n, tuple(found)) for n, found in parts.items()]))


OpenServed = Callable[[wire.Hello, Post, Callable[[str, str | None], None]], Served]


class _Open:
    """A request that is answered, or being understood."""

    def __init__(self) -> None:
        self._take_back: Callable[[], None] | None = None
        self._unwanted = False

    def begun(self, take_back: Callable[[], None]) -> None:
        self._take_back = take_back
        if self._unwanted:
            take_back()

    def take_back(self) -> None:
        self._unwanted = True
        if self._take_back is not None:
            self._take_back()


class Serving:
    """From the first word of a front to its last."""

    def __init__(
        self, link: Link, open_served: OpenServed, exit_now: Callable[[int], object] = os._exit
    ) -> None:
        self._link, self._exit_now = link, exit_now
        self._open_served = open_served
        self._post = Post(link)
        self._frames = wire.Frames()
        self._served: Served | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open: dict[int, _Open] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._hello: asyncio.Future[wire.Hello]
        self._over: asyncio.Event
        self._stopped = False  # it was asked to end, and has the time to

    def run(self) -> int:
        """Until the front ends it; its exit status."""
        reader = threading.Thread(target=self._read, name="parlay-reader", daemon=True)
        try:
            return asyncio.run(self._run(reader))
        finally:
            self._stopped = True
            self._link.end()
            reader.join()

    async def _run(self, reader: threading.Thread) -> int:
        self._loop = asyncio.get_running_loop()
        self._hello, self._over = self._loop.create_future(), asyncio.Event()
        reader.start()
        hello = await self._hello
        if hello.version != wire.VERSION:
            return self._unable("ParlayError", "the server is of another version; restart it")
        try:
            self._served = self._open_served(hello, self._post, self._trouble)
        except ParlayError as error:
            return self._unable(type(error).__name__, error.message)
        except Exception as error:
            log.exception("the engine could not be opened")
            return self._unable("ParlayError", f"the engine could not be opened ({error})"[:300])
        self._link.send(wire.frame(wire.Ready(wire.VERSION, self._served.facts)))
        pulse = self._loop.create_task(self._pulse(self._served))
        try:
            await self._over.wait()
        finally:
            pulse.cancel()
            for each in self._open.values():
                each.take_back()
            await asyncio.to_thread(self._served.close)
        return 0

    def _unable(self, kind: str, message: str) -> int:
        self._link.send(wire.frame(wire.Unable(kind, message)))
        self._link.drain(_LAST_WORDS_S)
        return 1

    def _trouble(self, kind: str, message: str | None) -> None:
        self._link.send(wire.frame(wire.Trouble(kind, message)))

    async def _pulse(self, served: Served) -> None:
        while True:
            await asyncio.sleep(_PULSE_S)
            self._link.send(wire.frame(wire.Pulse(served.passing_s())))

    # -- what is asked --------------------------------------------------------

    def _read(self) -> None:
        """On a thread: also while a model is loaded somebody hears that the front is gone."""
        try:
            self._link.read(self._push)
        except wire.WireError as error:
            log.error("the front said %s; this engine ends", error)
        if self._stopped:
            return
        # Nobody asks any more, and nobody else ends this process.
        last = threading.Timer(_ORPHAN_S, self._exit_now, (0,))
        last.daemon = True
        last.start()
        if self._served is None:
            self._exit_now(0)
        self._call_soon(self._over.set)

    def _push(self, data: bytes) -> None:
        for body in self._frames.push(data):
            message = wire.from_front(body)
            self._stopped = self._stopped or isinstance(message, wire.Stop)
            self._call_soon(self._hear, message)

    def _call_soon(self, function: Callable[..., object], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop has ended
            if self._loop is not None:
                self._loop.call_soon_threadsafe(function, *arguments)

    def _hear(self, message: wire.FromFront) -> None:
        if isinstance(message, wire.Answer):
            self._later(self._answer(message))
        elif isinstance(message, wire.Cancel):
            if (found := self._open.pop(message.number, None)) is not None:
                found.take_back()
        elif isinstance(message, wire.Call):
            self._later(self._call(message))
        elif isinstance(message, wire.Stop):
            self._over.set()
        elif not self._hello.done():
            self._hello.set_result(message)

    async def _answer(self, message: wire.Answer) -> None:
        assert self._served is not None
        number, found = message.number, _Open()
        self._open[number] = found

        def tell(replies: Sequence[Reply]) -> None:
            self._post.tell(number, replies)
            if replies and isinstance(replies[-1], (Done, Refused)):
                self._call_soon(self._open.pop, number, None)

        try:
            found.begun(await self._served.begin(message.ask, tell))
        except Exception as error:
            if not isinstance(error, ParlayError):
                log.exception("a request could not be begun")
            tell([refusal(error)])

    async def _call(self, message: wire.Call) -> None:
        assert self._served is not None
        try:
            value = await self._served.call(message.name, message.arguments)
            answer = wire.frame(wire.Returned(message.number, value))
        except Exception as error:
            if not isinstance(error, ParlayError):
                log.exception("%s failed", message.name)
            answer = wire.frame(wire.Returned(message.number, failed=refusal(error)))
        self._link.send(answer)

    def _later(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)  # the loop itself keeps no reference
        task.add_done_callback(self._tasks.discard)
