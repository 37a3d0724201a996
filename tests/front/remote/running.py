"""Starts real gateways for the tests, which look often and come back soon."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from parlay.deployment import Deployment, GatewaySection
from parlay.front.backends import begin
from parlay.front.remote import server
from parlay.front.remote.backend import RemoteBackend
from parlay.front.remote.health import HealthLimits
from parlay.front.service import Service
from tests.serving import Answering, in_thread, wait_for

# Limits that only guard against hanging are long: a busy machine may be silent for seconds.
QUICK = {
    "server": {"port": 0, "drain_s": 2, "request_timeout_s": 120},
    "gateway": {
        "health_interval_s": 0.1,
        "stall_timeout_s": 60,
    },
}
LIMITS = {"health_timeout_s": 60.0, "connect_timeout_s": 60.0}


class Running(Answering):
    """A server in front of pools."""

    def __init__(self, service: Service, port: int) -> None:
        super().__init__(port)
        assert isinstance(service.backend, RemoteBackend)
        self.service = service
        self.backend = service.backend
        self.pools = service.backend.pools

    @property
    def retries(self) -> int:
        return self.backend.n_retries

    def state(self, i: int) -> str:
        return self.pools.all[i].health.state


def merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    found = dict(one)
    for key, value in other.items():
        both = isinstance(value, dict) and isinstance(found.get(key), dict)
        found[key] = merged(found[key], value) if both else value
    return found


@contextmanager
def gateway(
    *pools: dict[str, Any],
    wait: bool = True,
    limits: dict[str, float] | None = None,
    **sections: Any,
) -> Iterator[Running]:
    """A gateway over pools, as they stand in a deployment file; sections by name."""
    content = merged(QUICK, sections)
    deployment = Deployment.model_validate({"engine": "endpoints", "upstreams": pools, **content})
    with served(lambda: deployment, limits) as found:
        if wait:
            ups = found.pools.all
            wait_for(lambda: all(up.health.state != "unknown" for up in ups))
            wait_for(lambda: all(up.listed for up in ups if up.health.takes))
        yield found


@contextmanager
def served(
    read: Callable[[], Deployment], limits: dict[str, float] | None = None
) -> Iterator[Running]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (LIMITS | (limits or {})).items():
            patch.setattr(GatewaySection, name, value)
        patch.setattr(server, "LIMITS", HealthLimits(eject_s=0.2, max_eject_s=1.0))
        with in_thread(read, begin) as (service, port):
            yield Running(service, port)
