"""A server from its start to its end: listen, begin the backend, signals, drain, end.

SIGTERM or SIGINT drains, a second one gives up what is open, a third waits for nobody; SIGHUP reads
the deployment again. Knows uvicorn and backends; knows no routes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterable
from types import FrameType

import uvicorn

from parlay.deployment import Deployment
from parlay.errors import ParlayError
from parlay.front.app import make_app
from parlay.front.backends import Running, begin
from parlay.front.connections import bounded
from parlay.front.errors import Failure
from parlay.front.gate import checked_keys
from parlay.front.process_backend import Unable
from parlay.front.service import Service

log = logging.getLogger("parlay.server")
_TURNS = 3  # of the loop, until a connection that was taken is made
_FAREWELL_S = 3.0  # for telling those whose answers are given up
_LOOK_S = 0.05
_FIXED = {"server": ("host", "port", "cors_origins"), "monitoring": ("metrics_endpoint",)}
Ready = Callable[[Service, int], None]
Begin = Callable[[Deployment, Callable[[str, str | None], None], Callable[[], None]], Running]


class Life:
    """One served deployment."""

    def __init__(
        self,
        read: Callable[[], Deployment],
        ready: Ready | None = None,
        begin: Begin = begin,
    ) -> None:
        """`ready` is called with the port, once requests are answered."""
        self._read, self._ready, self._begin = read, ready, begin
        self._reloads: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()
        self._failed: ParlayError | None = None  # why it could not begin
        self._status = 0
        self.server: Server | None = None

    def run(self) -> int:
        """Serve until told to stop; the exit status. Raises what keeps it from beginning."""
        deployment = self._read()
        checked_keys(deployment)
        listener = bind(deployment.server.host, deployment.server.port)
        try:
            asyncio.run(self._serve(deployment, listener))
        finally:
            listener.close()
        if self._failed is not None:
            raise self._failed
        return self._status

    async def _serve(self, deployment: Deployment, listener: socket.socket) -> None:
        service = Service(deployment)
        running = self._begin(deployment, service.alerts.set, self._give_up)
        service.backend = running.backend
        config = uvicorn.Config(
            make_app(service),
            http=bounded(deployment.server.max_connections),
            log_level="error",
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_keep_alive=30,
        )
        server = self.server = Server(config, service, running)
        starting = asyncio.create_task(self._start(running, service, listener))
        self._on_hangup(service, running)
        try:
            await server.serve(sockets=[listener])
        finally:
            server.give_up()
            for task in (starting, *self._reloads):
                task.cancel()
            await asyncio.gather(starting, *self._reloads, return_exceptions=True)
            await running.backend.close()
            await hang_up(server)
            service.close()

    async def _start(self, running: Running, service: Service, listener: socket.socket) -> None:
        """Who comes meanwhile waits, and /health says so."""
        try:
            await running.start()
        except Unable as error:
            self._failed = error.as_error()
        except ParlayError as error:
            self._failed = error
        else:
            if self._ready is not None:
                self._ready(service, listener.getsockname()[1])
            return
        assert self.server is not None
        self.server.should_exit = True

    def _give_up(self) -> None:
        """The engine died too often: whoever started this server decides what is done."""
        self._status = 1
        if self.server is not None:
            self.server.should_exit = True

    # -- SIGHUP ---------------------------------------------------------------

    def _on_hangup(self, service: Service, running: Running) -> None:
        if not hasattr(signal, "SIGHUP"):
            return

        def again() -> None:
            task = asyncio.get_running_loop().create_task(self._reload(service, running))
            self._reloads.add(task)  # the loop itself keeps no reference
            task.add_done_callback(self._reloads.discard)

        try:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, again)
        except (RuntimeError, ValueError):  # not the main thread: tests start servers in others
            log.debug("SIGHUP is not handled in this thread")

    async def _reload(self, service: Service, running: Running) -> None:
        """One at a time. What is the front's takes effect at once, what is the engine's with the
        engine that takes over; what is wrong changes nothing."""
        async with self._turn:
            old = service.deployment
            try:
                new = await asyncio.to_thread(self._read)
                service.apply(new)
                self._tell_restart(service, running.started_with, new)
                await running.follow(new)
            except (ParlayError, Unable, Failure) as error:
                log.error("the deployment was not reloaded: %s", error)
                service.alerts.set("reload", "the deployment has an error; the old one stays")
                service.apply(old)
            except Exception:
                log.exception("the deployment was not reloaded")
            else:
                service.alerts.set("reload", None)
                log.warning("the deployment was reloaded")

    def _tell_restart(self, service: Service, started: Deployment, new: Deployment) -> None:
        keys = [
            f"{section}.{key}"
            for section, fixed in _FIXED.items()
            for key in fixed
            if getattr(getattr(started, section), key) != getattr(getattr(new, section), key)
        ]
        service.alerts.set("restart_needed", None)
        if keys:
            text = f"{', '.join(keys)} changed and will act after a restart"
            service.alerts.set("restart_needed", text)


class Server(uvicorn.Server):
    """uvicorn; whose answer is given up is told so before the connection is closed."""

    def __init__(self, config: uvicorn.Config, service: Service, running: Running) -> None:
        super().__init__(config)
        self._service, self._running = service, running
        self._hurried = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._hurried:
            self.force_exit = True
        elif self.should_exit:
            self._hurried = True
        elif n := len(self.server_state.tasks):
            log.warning(
                "ending: %d request(s) under way, %g s for them; once more ends at once",
                n,
                self._service.deployment.server.drain_s,
            )
        self._service.draining = self.should_exit = True

    def give_up(self) -> None:
        """On the answers that are still open."""
        self._service.draining = self._service.gave_up = True
        self._running.backend.give_up()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.draining = True
        await take_no_more(self.servers)
        parting = asyncio.create_task(self._part())
        try:
            await super().shutdown(sockets)  # returns once all have gone, or at `force_exit`
        finally:
            parting.cancel()
            await asyncio.gather(parting, return_exceptions=True)

    async def _part(self) -> None:
        """With those who are not done when the drain ends: first a word, then nothing more."""
        await self._wait(self._service.deployment.server.drain_s, lambda: self._hurried)
        self.give_up()
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


async def hang_up(server: Server) -> None:
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
