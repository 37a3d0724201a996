"""An engine process that is a thread: the front's tests reach its model, and start in no time.

Everything but the process is as it is served: socket, frames, host.
"""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Callable, Sequence
from functools import partial

from parlay.backend import wire
from parlay.backend.__main__ import open_host
from parlay.backend.host import Host
from parlay.backend.link import Link
from parlay.backend.serving import Post, Serving
from parlay.deployment import Deployment
from parlay.front.backends import Running, told
from parlay.front.engine_process import EngineProcess
from parlay.front.process_backend import ProcessBackend


class EngineThreads:
    """Begins engines, and keeps the last one at hand."""

    def __init__(self) -> None:
        self.hosts: list[Host] = []

    def begin(
        self,
        deployment: Deployment,
        alert: Callable[[str, str | None], None],
        given_up: Callable[[], None],
    ) -> Running:
        """As `backends.begin`."""
        backend = ProcessBackend(
            wire.Hello(wire.VERSION, told(deployment)),
            max_restarts=deployment.server.max_restarts,
            most_pass_s=deployment.runtime.pass_timeout_s,
            alert=alert,
            given_up=given_up,
            process=partial(EngineProcess, launch=self._launch),
        )
        return Running(backend, deployment)

    def _launch(self, _command: Sequence[str], theirs: socket.socket) -> _Thread:
        return _Thread(theirs.dup(), self._open)

    def _open(
        self, hello: wire.Hello, post: Post, trouble: Callable[[str, str | None], None]
    ) -> Host:
        host = open_host(hello, post, trouble)
        self.hosts.append(host)
        return host


class _Thread:
    def __init__(
        self,
        sock: socket.socket,
        open_served: Callable[[wire.Hello, Post, Callable[[str, str | None], None]], Host],
    ) -> None:
        self._socket, self._status = sock, 0
        link = Link(sock)
        serving = Serving(link, open_served, exit_now=lambda _status: None)

        def run() -> None:
            try:
                self._status = serving.run()
            finally:
                link.close()

        self._thread = threading.Thread(target=run, name="test-engine")
        self._thread.start()

    def poll(self) -> int | None:
        return None if self._thread.is_alive() else self._status

    def kill(self) -> None:
        """As a front that dies: it ends by itself."""
        self._socket.shutdown(socket.SHUT_RDWR)

    def wait(self, timeout: float | None = None) -> int:
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise subprocess.TimeoutExpired("engine", timeout or 0.0)
        return self._status
