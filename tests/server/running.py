"""Starts real servers for the tests: the whole process's code, in a thread, on a free port.

Knows no test; signals are for the tests that start a process of their own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from openai import OpenAI

from parlay.deployment import Deployment, load_deployment
from parlay.routing import Rule
from parlay.server.process import Process
from parlay.server.service import Service

START_S = 60.0


class Running:
    """A server that answers on loopback."""

    def __init__(self, service: Service, port: int) -> None:
        self.service = service
        self.url = f"http://127.0.0.1:{port}"

    def client(self, key: str = "none") -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=60)


@contextmanager
def running(target: Path, **overrides: Any) -> Iterator[Running]:
    """Keys are written with two underscores: runtime__slots=2; `routes` are rules."""
    routes: tuple[Rule, ...] | None = overrides.pop("routes", None)
    given = {
        "model.target": str(target),
        "runtime.context_size": 512,
        "runtime.threads": 1,
        "runtime.slots": 2,
        "runtime.speculative_window": 4,  # windows by measured time have tests of their own
        "server.port": 0,
        "server.drain_s": 2,
        "monitoring.memory_pressure_pct": 100,
        **{key.replace("__", "."): value for key, value in overrides.items()},
    }
    started = threading.Event()
    found: list[Running] = []
    failed: list[BaseException] = []

    def ready(service: Service, port: int) -> None:
        found.append(Running(service, port))
        started.set()

    def read() -> Deployment:
        found = load_deployment(environ={}, overrides=given)
        return found if routes is None else found.model_copy(update={"routes": routes})

    process = Process(read, ready)

    def run() -> None:
        try:
            process.run()
        except BaseException as error:
            failed.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=run, name="test-server")
    thread.start()
    try:
        assert started.wait(START_S), "the server did not start"
        if failed:
            raise failed[0]
        yield found[0]
    finally:
        if process.server is not None:
            process.server.should_exit = True
        thread.join(START_S)
