"""The pools: which server takes the next request, and who waits for one.

Least busy first, first come first served; everything bounded. Knows no HTTP of clients.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from parlay.deployment import Deployment
from parlay.front import errors as failures
from parlay.front.remote.server import Server

_MAX_RETRY_S = 60


@dataclass(eq=False)
class _Waiting:
    """A request that waits for a server."""

    prefer: tuple[bool, ...]
    tried: Collection[Server]
    found: asyncio.Future[Server] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class Pools:
    """All servers of a deployment."""

    def __init__(self, deployment: Deployment) -> None:
        self.all: list[Server] = []
        self._queue: deque[_Waiting] = deque()
        self._usual_s = 1.0  # running mean of an answer's time, for Retry-After
        self._turn = 0
        self.apply(deployment)

    def apply(self, deployment: Deployment) -> list[Server]:
        """Take over a deployment's servers; those it no longer names come back, to be closed."""
        old = {(server.pool, server.url): server for server in self.all}
        wanted = [(pool, url) for pool in deployment.upstreams for url in pool.urls]
        self.all = [
            old.pop(key) if key in old else Server(*key, settings=deployment.gateway)
            for key in wanted
        ]
        self._queue_size = deployment.server.queue_size
        for server in old.values():
            server.leaving = True
        return list(old.values())

    @property
    def n_waiting(self) -> int:
        return len(self._queue)

    @property
    def n_places(self) -> int:
        """Requests the servers take at once."""
        return sum(server.pool.max_concurrent for server in self.all if server.health.takes)

    @property
    def n_in_flight(self) -> int:
        return sum(server.in_flight for server in self.all)

    def both(self) -> bool:
        """Whether there is anything to choose: pools that speculate and pools that do not."""
        return len({server.pool.speculative for server in self.all}) == 2

    def able(self, speculative: bool) -> bool:
        """Whether a server of this kind takes requests."""
        return any(
            server.health.takes for server in self.all if server.pool.speculative is speculative
        )

    def fresh(self, tried: Collection[Server]) -> bool:
        """Whether anyone else could be asked."""
        return any(server.health.takes for server in self.all if server not in tried)

    async def lease(self, prefer: Sequence[bool], tried: Collection[Server]) -> Server:
        """A server, counted as busy until `release`. `prefer`: kinds, the first one first."""
        waiting = _Waiting(tuple(prefer), tried)
        if not self._queue and (found := self._pick(waiting)) is not None:
            return found
        self._admit(waiting)
        self._queue.append(waiting)
        self.dispatch()  # those before it may wait for servers of another kind
        try:
            return await waiting.found
        except asyncio.CancelledError:
            if waiting.found.done() and not waiting.found.cancelled():
                self.release(waiting.found.result())  # it came just as nobody wanted it any more
            raise
        finally:
            if waiting in self._queue:
                self._queue.remove(waiting)

    def release(self, server: Server, seconds: float | None = None) -> None:
        """A server has a place again. `seconds`: how long its answer took."""
        server.in_flight -= 1
        if seconds is not None:
            self._usual_s += 0.1 * (seconds - self._usual_s)
        self.dispatch()

    def dispatch(self) -> None:
        """Places came free, or servers came or went: serve those who wait, the oldest first."""
        for waiting in list(self._queue):
            if waiting.found.done():
                continue
            if not any(self._candidates(waiting)):
                waiting.found.set_exception(nobody())
            elif (found := self._pick(waiting)) is not None:
                waiting.found.set_result(found)

    # -- the choice -------------------------------------------------------------

    def full(self, n_coming: int) -> failures.Failure | None:
        """Whether there is no place for one more beside those on their way in."""
        n = self.n_in_flight + self.n_waiting + n_coming
        return self._busy() if 0 < self.n_places + self._queue_size <= n else None

    def _admit(self, waiting: _Waiting) -> None:
        if not any(self._candidates(waiting)):
            raise nobody()
        if len(self._queue) >= self._queue_size:
            raise self._busy()

    def _busy(self) -> failures.Failure:
        wait = math.ceil(self._usual_s * (len(self._queue) + 1) / max(1, self.n_places))
        return failures.busy(min(max(1, wait), _MAX_RETRY_S))

    def _pick(self, waiting: _Waiting) -> Server | None:
        """The least busy of the first kind that has anyone at all; it is busy from now on."""
        for group in self._candidates(waiting):
            free = [server for server in group if not server.full]
            if free:
                self._turn += 1  # among equals each in its turn
                n = len(free)
                server = min(
                    (free[(i + self._turn) % n] for i in range(n)),
                    key=lambda server: server.in_flight / server.pool.max_concurrent,
                )
                server.in_flight += 1
                return server
            return None  # it is worth waiting for: the other kind was not chosen
        return None

    def _candidates(self, waiting: _Waiting) -> Iterator[list[Server]]:
        """Who may be asked, in groups: by kind, then who might just be well."""
        fresh = [server for server in self.all if server not in waiting.tried]
        for kind in waiting.prefer:
            group = [
                server
                for server in fresh
                if server.pool.speculative is kind and server.health.takes
            ]
            if group:
                yield group
        last = [
            server
            for server in fresh
            if server.health.last_resort or server.health.state == "unknown"
        ]
        if last:
            yield last


def nobody() -> failures.Failure:
    return failures.unavailable("no server takes requests now; try again soon", "no_upstream")
