"""What tests of servers share: one in a thread on a free port, and waiting for what it does.

Knows hosts, not what they serve; signals are for the tests that start a process of their own.
"""

from __future__ import annotations

import gc
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from openai import OpenAI

from parlay.deployment import Deployment
from parlay.front.life import Begin, Life
from parlay.front.service import Service

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


class Answering:
    """A server that answers on loopback."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def client(self, key: str = "none") -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=PATIENCE_S)


@contextmanager
def in_thread(read: Callable[[], Deployment], begin: Begin) -> Iterator[tuple[Service, int]]:
    """The service, as soon as it answers, and its port."""
    started = threading.Event()
    found: list[tuple[Service, int]] = []
    failed: list[BaseException] = []

    def ready(service: Service, port: int) -> None:
        found.append((service, port))
        started.set()

    life = Life(read, ready, begin)

    def run() -> None:
        try:
            life.run()
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
        if life.server is not None:
            life.server.should_exit = True
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "the server does not end"


@contextmanager
def unclosed() -> Iterator[list[str]]:
    """What was left open in the block and not what tests before it left: told at its end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()
    found: list[str] = []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        yield found
        gc.collect()
    found += [str(warning.message) for warning in told]


@contextmanager
def kept_port() -> Iterator[int]:
    """A port that servers of this test may take one after the other, and nobody else in between.

    Bound and never listened on: nobody who comes is taken in by this socket.
    """
    with socket.socket() as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", 0))
        yield kept.getsockname()[1]


def wait_for(condition: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)
