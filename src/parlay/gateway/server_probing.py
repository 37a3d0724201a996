"""Looks after the servers: health checks, counters, and who must be told when one is gone.

Runs beside the requests; what a check means is `health.py`'s business.
"""

from __future__ import annotations

import asyncio
import time

from parlay.front.remote.server import Server as Upstream
from parlay.gateway.service import Gateway

_AT_ONCE = 64


class ServerProbing:
    """Looks at one gateway's servers."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._at_once = asyncio.Semaphore(_AT_ONCE)

    async def run(self) -> None:
        """As long as it is served."""
        while True:
            await self.look()
            await asyncio.sleep(self._gateway.deployment.gateway.health_interval_s)

    async def look(self) -> None:
        """Once at everyone for whom it could make a difference."""
        now = time.monotonic()
        due = [up for up in self._gateway.pools.all if up.health.due(now)]
        await asyncio.gather(*(self._check(up) for up in due))
        self._gateway.pools.dispatch()
        self._tell()

    async def _check(self, up: Upstream) -> None:
        async with self._at_once:
            await up.check()

    def _tell(self) -> None:
        gateway = self._gateway
        servers = gateway.pools.all
        out = [up for up in servers if not up.health.takes]
        first = f" (first: {out[0].pool.name}, {out[0].health.reason})" if out else ""
        text = f"{len(out)} of {len(servers)} servers take no requests{first}" if out else None
        gateway.alerts.set("upstream_out", text)
        down = [pool.name for pool in gateway.deployment.upstreams if self._is_down(pool.name)]
        text = f"no server of {', '.join(down)} takes requests" if down else None
        gateway.alerts.set("pool_down", text)

    def _is_down(self, name: str) -> bool:
        return not any(up.health.takes for up in self._gateway.pools.all if up.pool.name == name)
