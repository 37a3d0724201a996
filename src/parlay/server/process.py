"""The server as a process: start, signals, drain, end.

SIGTERM or SIGINT drains, a second one ends at once; SIGHUP reads the deployment again.
Knows uvicorn; what is served is the application's business.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import time
from collections.abc import Callable, Sequence
from types import FrameType

import uvicorn

from parlay import __version__
from parlay.deployment import Deployment
from parlay.errors import ParlayError
from parlay.server.app import create_app
from parlay.server.opening import drafter_fits, open_engine, with_known_drafter
from parlay.server.reload import reload
from parlay.server.security import Keys, check_bind
from parlay.server.service import Service
from parlay.server.watch import Watch

log = logging.getLogger("parlay.server")
_GRACE_S = 0.25  # a client that waited for the server asks at once
_PATIENCE_S = 10.0
Ready = Callable[[Service, int], None]


class _Server(uvicorn.Server):
    """uvicorn, draining on the first signal and ending on the second."""

    service: Service | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            self.force_exit = True
            if self.service is not None:
                self.service.cancel_all()
        if self.service is not None:
            self.service.draining = True
        self.should_exit = True


class Process:
    """One served deployment."""

    def __init__(self, read: Callable[[], Deployment], ready: Ready | None = None) -> None:
        self._read: Callable[[], Deployment] = lambda: with_known_drafter(read())
        self._ready = ready
        self._reloads: set[asyncio.Task[bool]] = set()
        self.server: _Server | None = None

    def run(self) -> None:
        """Load, serve until told to stop, free everything."""
        deployment = self._read()
        check_bind(deployment, Keys.of(deployment))
        listener = bind(deployment.server.host, deployment.server.port)
        try:
            engine, observer = open_engine(deployment)
            service = Service(deployment, engine, observer)
        except BaseException:
            listener.close()
            raise
        try:
            asyncio.run(self._serve(service, listener))
        finally:
            service.close()
            listener.close()

    async def _serve(self, service: Service, listener: socket.socket) -> None:
        self.server = _Server(_config(service))
        self.server.service = service
        service.loop = asyncio.get_running_loop()
        tasks = [
            asyncio.create_task(_warm_up(service)),
            asyncio.create_task(Watch(service).run()),
        ]
        self._on_hangup(service)
        if self._ready is not None:
            self._ready(service, listener.getsockname()[1])
        try:
            await self.server.serve(sockets=[listener])
        finally:
            service.cancel_all()
            await _end(tasks)

    def _on_hangup(self, service: Service) -> None:
        if not hasattr(signal, "SIGHUP"):
            return

        def again() -> None:
            task = asyncio.get_running_loop().create_task(reload(service, self._read))
            self._reloads.add(task)  # the loop itself keeps no reference
            task.add_done_callback(self._reloads.discard)

        try:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, again)
        except (RuntimeError, ValueError):  # not the main thread: tests start servers in others
            log.debug("SIGHUP is not handled in this thread")


async def _warm_up(service: Service) -> None:
    """Measure, then load the drafter; whatever can wait goes after the answers asked for."""
    await asyncio.sleep(_GRACE_S)
    await service.warm_up.run(service.pricing, _PATIENCE_S)
    await _load_drafter(service)
    await service.warm_up.finish(service.pricing)


async def _load_drafter(service: Service) -> None:
    """Let the first answers go first: loading beside them would slow them down."""
    end = time.monotonic() + _PATIENCE_S
    while service.n_open and time.monotonic() < end:
        await asyncio.sleep(_GRACE_S)
    if drafter_fits(service.deployment):
        await service.drafter.load()
    else:
        service.drafter.refuse("both models together are over vram_budget_gb")


async def _end(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


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
        raise ParlayError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    return listener


def _config(service: Service) -> uvicorn.Config:
    server = service.deployment.server
    return uvicorn.Config(
        create_app(service, __version__),
        log_level="error",
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=round(server.drain_s),
        timeout_keep_alive=30,
    )
