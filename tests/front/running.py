"""Starts real servers for the tests: small, and with a window that does not hang on the time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from parlay.backend.host import Host
from parlay.deployment import Deployment, load_deployment
from parlay.front.service import Service
from parlay.routing import Rule
from tests.engine_thread import EngineThreads
from tests.serving import Answering, in_thread


class Running(Answering):
    """A server whose engine is a thread."""

    def __init__(self, service: Service, threads: EngineThreads, port: int) -> None:
        super().__init__(port)
        self.service = service
        self._threads = threads

    @property
    def host(self) -> Host:
        """The model that answers now."""
        return self._threads.hosts[-1]

    @property
    def idle(self) -> bool:
        engine = self.host.engine
        return not (self.service.n_open or engine.active or engine.n_waiting)

    def figures(self) -> dict[str, Any]:
        found: dict[str, Any] = httpx.get(f"{self.url}/metrics/speculative").json()
        return found

    @property
    def drafter(self) -> str:
        """The state of its draft models."""
        return str(self.figures()["drafter"]["state"])


@contextmanager
def running(target: Path, **overrides: Any) -> Iterator[Running]:
    """Keys are written with two underscores: runtime__slots=2; `routes` are rules."""
    routes: tuple[Rule, ...] | None = overrides.pop("routes", None)
    given = {
        "model.target": str(target),
        "runtime.context_size": 512,
        "runtime.threads": 1,
        "runtime.slots": 2,
        "runtime.speculative_window": 4,
        "runtime.controller": "fixed",  # windows by measured time have tests of their own
        "runtime.mode": "exact",  # and so has the choice by what exactness costs on this machine
        "server.port": 0,
        "server.drain_s": 2,
        **{key.replace("__", "."): value for key, value in overrides.items()},
    }

    def read() -> Deployment:
        found = load_deployment(environ={}, overrides=given)
        return found if routes is None else found.model_copy(update={"routes": routes})

    threads = EngineThreads()
    with in_thread(read, threads.begin) as (service, port):
        yield Running(service, threads, port)


def server_on(model: str, **overrides: Any) -> Any:
    """A fixture: one server for all tests of a file, on the model that a fixture of this name has.

    Keys as in `running`.
    """

    @pytest.fixture(scope="module")
    def server(request: pytest.FixtureRequest) -> Iterator[Running]:
        with running(request.getfixturevalue(model), **overrides) as found:
            yield found

    return server
