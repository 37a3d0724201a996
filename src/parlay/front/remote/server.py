"""One server behind the gateway: its connection, its standing, and what it tells about itself.

Knows HTTP; which server answers which request is the pools' business.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx

from parlay.deployment import DeploymentError, GatewaySection
from parlay.front.remote.health import Health, HealthLimits
from parlay.front.remote.tally import Page, Tally
from parlay.reading import answers, counters
from parlay.reading.bounds import one_line
from parlay.upstreams import Pool

log = logging.getLogger("parlay.server")
_MAX_PAGE = 4_000_000
# Servers close connections that idle for five seconds; a request must not meet such a one.
_KEEP_ALIVE_S = 2.0
LIMITS = HealthLimits()


@dataclass(frozen=True, slots=True)
class Fetched:
    """One page of a server, or why there is none."""

    status: int | None = None  # none: no answer in time
    text: str = ""
    problem: str | None = None
    detail: str = ""


class Server:
    """A server of a pool. Close it, or its connections stay."""

    def __init__(self, pool: Pool, url: str, settings: GatewaySection) -> None:
        self.pool = pool
        self.url = url
        self.health = Health(LIMITS)
        self.in_flight = 0
        self.n_answered = 0
        self.n_failed = 0
        self.listed: str | None = None  # the model it names first
        self.engine: str | None = None  # who it says it is
        self.page = Page()
        self.told = Tally()  # by its answers
        self.leaving = False  # no longer in the deployment; what it began it may end
        self._check_s = settings.health_timeout_s
        self.http = httpx.AsyncClient(
            base_url=url,
            headers=key_headers(pool),
            timeout=httpx.Timeout(None, connect=settings.connect_timeout_s),
            limits=httpx.Limits(
                max_connections=pool.max_concurrent + 4, keepalive_expiry=_KEEP_ALIVE_S
            ),
            trust_env=False,
            follow_redirects=False,
        )

    @property
    def model(self) -> str | None:
        """What to ask it for."""
        return self.pool.model or self.listed

    @property
    def full(self) -> bool:
        return self.in_flight >= self.pool.max_concurrent

    def answered(self) -> None:
        self.n_answered += 1
        self.health.answered(time.monotonic())

    def failed(self, reason: str, *, gone: bool = False) -> None:
        """A request failed there."""
        self.n_failed += 1
        self._tell(lambda now: self.health.failed(now, reason, gone=gone))

    async def check(self) -> None:
        """Ask how it is; of one that is well also its counters and its model's name."""
        problem = await self._problem()
        self._tell(lambda now: self.health.checked(now, problem))
        if problem is None:
            self.page.see(counters.parse(await self._text("/metrics")))
            if self.listed is None:
                self._take_models(await self._text("/v1/models"))

    async def close(self) -> None:
        await self.http.aclose()

    def _tell(self, change: Callable[[float], None]) -> None:
        before = self.health.state
        change(time.monotonic())
        if self.health.state != before:
            log.warning("%s is %s: %s", self.url, self.health.state, self.health.reason or "well")

    async def fetch(self, path: str) -> Fetched:
        """A page, as far as it comes in time and is of a sane size."""
        try:
            return await asyncio.wait_for(self._fetch_again(path), self._check_s)
        except (httpx.TimeoutException, asyncio.TimeoutError):
            return Fetched(problem="timeout", detail=f"no answer in {self._check_s:g} s")
        except (httpx.HTTPError, RuntimeError) as error:  # it may have been closed meanwhile
            return Fetched(
                problem="unreachable", detail=one_line(str(error) or type(error).__name__)
            )

    async def _fetch_again(self, path: str) -> Fetched:
        """A server may close a connection in the moment in which it is taken up again: that says
        nothing of it, and another one is tried."""
        try:
            return await self._fetch(path)
        except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):
            return await self._fetch(path)

    async def _fetch(self, path: str) -> Fetched:
        found = bytearray()
        async with self.http.stream("GET", path, timeout=self._check_s) as response:
            status = response.status_code
            if status != 200:
                return Fetched(status, problem=f"http_{status}", detail=f"answers {status}")
            async for data in response.aiter_bytes():
                found += data
                if len(found) > _MAX_PAGE:
                    return Fetched(status, problem="oversize", detail="the answer is too long")
        return Fetched(status, found.decode("utf-8", "replace"))

    async def _problem(self) -> str | None:
        found = await self.fetch(self.pool.health)
        if found.problem in (None, "unreachable"):
            return found.problem
        return f"check_{found.problem}"

    async def _text(self, path: str) -> str:
        """Empty where there is none."""
        return (await self.fetch(path)).text

    def _take_models(self, text: str) -> None:
        row = answers.first((answers.object_of(text) or {}).get("data"))
        self.listed = answers.string(row.get("id"))
        self.engine = answers.string(row.get("owned_by"))


def key_headers(pool: Pool) -> dict[str, str]:
    """What opens a pool's servers."""
    key = None if pool.api_key is None else pool.api_key.get_secret_value()
    if pool.api_key_file is not None:
        try:
            key = Path(pool.api_key_file).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError):
            raise DeploymentError(
                f"upstreams: {pool.name}: api_key_file cannot be read; check the path"
            ) from None
    return {"Authorization": f"Bearer {key}"} if key else {}
