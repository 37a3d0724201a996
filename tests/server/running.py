"""Starts real servers for the tests: small, and with a window that does not hang on the time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from parlay.deployment import Deployment, load_deployment
from parlay.routing import Rule
from parlay.server.lifecycle.process import Process
from parlay.server.lifecycle.service import Service
from tests.serving import Answering, in_thread


class Running(Answering):
    """A server on an engine of our own."""

    def __init__(self, service: Service, port: int) -> None:
        super().__init__(port)
        self.service = service


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
        "monitoring.memory_pressure_pct": 100,
        **{key.replace("__", "."): value for key, value in overrides.items()},
    }

    def read() -> Deployment:
        found = load_deployment(environ={}, overrides=given)
        return found if routes is None else found.model_copy(update={"routes": routes})

    with in_thread(partial(Process, read)) as (service, port):
        yield Running(service, port)


def server_on(model: str, **overrides: Any) -> Any:
    """A fixture: one server for all tests of a file, on the model that a fixture of this name has.

    Keys as in `running`.
    """

    @pytest.fixture(scope="module")
    def server(request: pytest.FixtureRequest) -> Iterator[Running]:
        with running(request.getfixturevalue(model), **overrides) as found:
            yield found

    return server
