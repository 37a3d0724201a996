"""Anything served, as a process: start, signals, drain, end.

SIGTERM or SIGINT drains, a second one gives up what is open; SIGHUP reads the deployment again.
Knows uvicorn; what is served, and on which engine, is the subclass's business.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FrameType
from typing import Generic, Protocol, TypeVar

import uvicorn
from starlette.types import ASGIApp

from parlay.deployment import Deployment
from parlay.errors import ParlayError
from parlay.web.alerts import Alerts
from parlay.web.background import Work, keep_running
from parlay.web.connections import bounded
from parlay.web.security import checked_keys
from parlay.web.supervised import Supervised
from parlay.web.supervisor_link import SupervisorLink

log = logging.getLogger("parlay.server")
_TURNS = 3  # of the loop, until a connection that was taken is made
_FAREWELL_S = 3.0  # for telling those whose answers are given up
_LOOK_S = 0.05


class Served(Protocol):
    """What can be started and stopped."""

    deployment: Deployment
    draining: bool
    alerts: Alerts
    supervisor_link: SupervisorLink

    def cancel_all(self) -> None:
        """Give up the requests that are open."""

    def close(self) -> None:
        """Free everything; nobody asks any more."""


S = TypeVar("S", bound=Served)
Ready = Callable[[S, int], None]


def kept_old(alerts: Alerts, error: ParlayError) -> bool:
    """A deployment that was read again and is wrong: false, it was not taken over."""
    log.error("the deployment was not reloaded: %s", error)
    alerts.set("reload", "the deployment file has an error; the old one stays")
    return False


class UvicornServer(uvicorn.Server):
    """uvicorn: the first signal drains, the second gives up what is open, the third waits for
    nobody. Whose answer is given up is told so before the connection is closed."""

    service: Served | None = None
    _hurried = False

    def __init__(self, config: uvicorn.Config, drain_s: float) -> None:
        super().__init__(config)
        self._drain_s = drain_s

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._hurried:
            self.force_exit = True
        elif self.should_exit:
            self._hurried = True
        elif n := len(self.server_state.tasks):
            log.warning(
                "ending: %d request(s) under way, %g s for them; once more ends at once",
                n,
                self._drain_s,
            )
        if self.service is not None:
            self.service.draining = True
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await take_no_more(self.servers)
        parting = asyncio.create_task(self._part())
        try:
            await super().shutdown(sockets)  # returns once all have gone, or at `force_exit`
        finally:
            await _end([parting])

    async def _part(self) -> None:
        """With those who are not done when the drain ends: first a word, then nothing more."""
        await self._wait(self._drain_s, lambda: self._hurried)
        if self.service is not None:
            self.service.cancel_all()
        await self._wait(_FAREWELL_S, lambda: self.force_exit)
        await hang_up(self)
        await self._wait(_LOOK_S, lambda: False)  # who hears that nobody is there ends by itself
        self.force_exit = True

    async def _wait(self, seconds: float, enough: Callable[[], bool]) -> None:
        """As long as somebody is still served, or has not got the last bytes yet."""
        state, loop = self.server_state, asyncio.get_running_loop()
        end = loop.time() + seconds
        while (state.tasks or state.connections) and not enough() and loop.time() < end:
            await asyncio.sleep(min(_LOOK_S, seconds))


async def take_no_more(servers: Iterable[asyncio.Server]) -> None:
    """Before servers are closed: a connection taken in the very turn in which its server is closed
    stays open for ever, since asyncio makes no transport for it and says nothing."""
    loop = asyncio.get_running_loop()
    for listener in (each for server in servers for each in server.sockets):
        with contextlib.suppress(NotImplementedError):  # not every loop polls
            loop.remove_reader(listener.fileno())
    for _ in range(_TURNS):
        await asyncio.sleep(0)


class Host(ABC, Generic[S]):
    """One served deployment."""

    def __init__(
        self,
        read: Callable[[], Deployment],
        ready: Ready[S] | None = None,
        supervised: Supervised | None = None,
    ) -> None:
        self._read = read
        self._supervised = supervised
        self._listener = None if supervised is None else supervised.listener
        self._ready = ready
        self._reloads: set[asyncio.Task[bool]] = set()
        self._turn = asyncio.Lock()
        self.server: UvicornServer | None = None

    def read(self) -> Deployment:
        """The deployment as it is now."""
        return self._read()

    @abstractmethod
    def open(self, deployment: Deployment) -> S:
        """Make it ready to answer; the address is taken already."""

    @abstractmethod
    def app(self, service: S) -> ASGIApp:
        """What answers over HTTP."""

    @abstractmethod
    def beside(self, service: S) -> Mapping[str, Work]:
        """What runs on the loop as long as it is served, by name."""

    async def end(self, service: S) -> None:
        """Hang up, on the loop, once nobody is served any more."""

    @abstractmethod
    async def reload(self, service: S) -> bool:
        """Take over a deployment that was read again."""

    def run(self) -> None:
        """Load, serve until told to stop, free everything."""
        deployment = self.read()
        checked_keys(deployment)
        listener = self._listener or bind(deployment.server.host, deployment.server.port)
        try:
            service = self.open(deployment)
        except BaseException:
            listener.close()
            raise
        try:
            asyncio.run(self._serve(service, listener))
        finally:
            service.close()
            listener.close()

    async def _serve(self, service: S, listener: socket.socket) -> None:
        config = _config(self.app(service), service.deployment, service.supervisor_link)
        self.server = UvicornServer(config, service.deployment.server.drain_s)
        self.server.service = service
        beside = self.beside(service).items()
        tasks = [asyncio.create_task(keep_running(n, work, service.alerts)) for n, work in beside]
        self._on_hangup(service)
        if self._ready is not None:
            self._ready(service, listener.getsockname()[1])
        if self._supervised is not None:
            service.supervisor_link.channel = self._supervised.channel
            asyncio.get_running_loop().call_soon(self._supervised.begin, self.server)
        try:
            await self.server.serve(sockets=[listener])
        finally:
            service.cancel_all()
            await _end(tasks)
            await self.end(service)
            await hang_up(self.server)

    async def _reload(self, service: S) -> bool:
        """One at a time; what nobody expected leaves the old deployment as it is."""
        async with self._turn:
            try:
                return await self.reload(service)
            except Exception:
                log.exception("the deployment was not reloaded")
                return False

    def _on_hangup(self, service: S) -> None:
        if not hasattr(signal, "SIGHUP"):
            return

        def again() -> None:
            task = asyncio.get_running_loop().create_task(self._reload(service))
            self._reloads.add(task)  # the loop itself keeps no reference
            task.add_done_callback(self._reloads.discard)

        try:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, again)
        except (RuntimeError, ValueError):  # not the main thread: tests start servers in others
            log.debug("SIGHUP is not handled in this thread")


async def _end(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def hang_up(server: UvicornServer) -> None:
    """On those who are still there after the drain: uvicorn leaves their connections open."""
    for connection in list(server.server_state.connections):
        connection.transport.abort()
    await asyncio.sleep(0)  # they are closed in the loop's next turn


def bind(host: str, port: int) -> socket.socket:
    """Take the address before minutes are spent on loading."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise ParlayError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another --host or --port"
        ) from None
    return listener


def _config(
    app: ASGIApp, deployment: Deployment, supervisor_link: SupervisorLink
) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=bounded(deployment.server.max_connections, supervisor_link=supervisor_link),
        log_level="error",
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_keep_alive=30,
    )
