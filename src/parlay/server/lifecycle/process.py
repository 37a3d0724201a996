"""The server on a local engine, as a process: open, warm up, monitor, reload.

Knows the engine's service; signals and draining are the host's business.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from functools import partial

from starlette.types import ASGIApp

from parlay import __version__
from parlay.deployment import Deployment
from parlay.server.lifecycle.app import create_app
from parlay.server.lifecycle.engine_start import (
    open_engine,
    with_fit,
    with_known_drafter,
    with_name,
)
from parlay.server.lifecycle.monitor import Monitor
from parlay.server.lifecycle.reload import reload
from parlay.server.lifecycle.service import Service
from parlay.web.background import Work
from parlay.web.hosting import Host

_GRACE_S = 0.25  # a client that waited for the server asks at once
_PATIENCE_S = 10.0


class Process(Host[Service]):
    """One deployment on an engine of our own."""

    def read(self) -> Deployment:
        return with_name(with_known_drafter(super().read()))

    def open(self, deployment: Deployment) -> Service:
        deployment = with_fit(deployment)
        engine, observer = open_engine(deployment)
        return Service(deployment, engine, observer)

    def app(self, service: Service) -> ASGIApp:
        return create_app(service, __version__)

    def beside(self, service: Service) -> Mapping[str, Work]:
        service.loop = asyncio.get_running_loop()
        return {"the warm-up": partial(_warm_up, service), "the monitor": Monitor(service).run}

    async def reload(self, service: Service) -> bool:
        return await reload(service, self.read)


async def _warm_up(service: Service) -> None:
    """Measure, then load the drafter; whatever can wait goes after the answers asked for."""
    await asyncio.sleep(_GRACE_S)
    await service.warm_up.run(_PATIENCE_S)
    await _load_drafter(service)
    await service.warm_up.go_on()


async def _load_drafter(service: Service) -> None:
    """Let the first answers go first: loading beside them would slow them down."""
    end = time.monotonic() + _PATIENCE_S
    while service.n_open and time.monotonic() < end:
        await asyncio.sleep(_GRACE_S)
    await service.drafter.load()
