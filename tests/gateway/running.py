"""Starts a real gateway for the tests: the whole process's code, in a thread, on a free port."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from openai import OpenAI

from parlay.deployment import Deployment, load_deployment
from parlay.gateway.process import GatewayProcess
from parlay.gateway.service import Gateway

START_S = 30.0
QUICK = {
    "server": {"port": 0, "drain_s": 2, "request_timeout_s": 20},
    "gateway": {"health_interval_s": 0.1, "eject_s": 0.2, "max_eject_s": 1, "stall_timeout_s": 5},
}


class Running:
    """A gateway that answers on loopback."""

    def __init__(self, gateway: Gateway, port: int) -> None:
        self.gateway = gateway
        self.url = f"http://127.0.0.1:{port}"

    def client(self, key: str = "none") -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=60)

    def state(self, i: int) -> str:
        return self.gateway.pools.all[i].health.state


def merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    found = dict(one)
    for key, value in other.items():
        both = isinstance(value, dict) and isinstance(found.get(key), dict)
        found[key] = merged(found[key], value) if both else value
    return found


@contextmanager
def gateway(*pools: dict[str, Any], wait: bool = True, **sections: Any) -> Iterator[Running]:
    """A gateway over pools, as they stand in a deployment file; sections by name."""
    content = merged(QUICK, sections)
    deployment = Deployment.model_validate({"engine": "endpoints", "upstreams": pools, **content})
    with served(lambda: deployment) as found:
        if wait:
            ups = found.gateway.pools.all
            wait_for(lambda: all(up.health.state != "unknown" for up in ups))
            wait_for(lambda: all(up.listed for up in ups if up.health.takes))
        yield found


@contextmanager
def served(read: Callable[[], Deployment]) -> Iterator[Running]:
    started = threading.Event()
    found: list[Running] = []
    failed: list[BaseException] = []

    def ready(service: Gateway, port: int) -> None:
        found.append(Running(service, port))
        started.set()

    process = GatewayProcess(read, ready)

    def run() -> None:
        try:
            process.run()
        except BaseException as error:
            failed.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=run, name="test-gateway")
    thread.start()
    try:
        assert started.wait(START_S), "the gateway did not start"
        if failed:
            raise failed[0]
        yield found[0]
    finally:
        if process.server is not None:
            process.server.should_exit = True
        thread.join(START_S)


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


def from_file(path: Any) -> Callable[[], Deployment]:
    return lambda: load_deployment(path, environ={})
