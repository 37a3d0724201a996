"""What tests of servers share: one in a thread on a free port, and waiting for what it does.

Knows hosts, not what they serve; signals are for the tests that start a process of their own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from openai import OpenAI

from parlay.web.hosting import Host, Ready, Served

# Far more than anything here takes, even on a busy machine: who waits that long, has hung.
PATIENCE_S = 300.0
# An answer that goes on until somebody ends it.
ENDLESS: dict[str, Any] = {
    "prompt": "hello",
    "max_tokens": 10**6,
    "temperature": 0,
    "context_full": "slide",
    "stream": True,
}

S = TypeVar("S", bound=Served)


class Answering:
    """A server that answers on loopback."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def client(self, key: str = "none") -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=PATIENCE_S)


@contextmanager
def in_thread(made: Callable[[Ready[S]], Host[S]]) -> Iterator[tuple[S, int]]:
    """The service, as soon as it answers, and its port."""
    started = threading.Event()
    found: list[tuple[S, int]] = []
    failed: list[BaseException] = []

    def ready(service: S, port: int) -> None:
        found.append((service, port))
        started.set()

    host = made(ready)

    def run() -> None:
        try:
            host.run()
        except BaseException as error:
            failed.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=run, name="test-server")
    thread.start()
    try:
        assert started.wait(PATIENCE_S), "the server did not start"
        if failed:
            raise failed[0]
        yield found[0]
    finally:
        if host.server is not None:
            host.server.should_exit = True
        thread.join(PATIENCE_S)


def wait_for(condition: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)
