"""One look at every server of a deployment, before anything is served: health, models, counters.

Asks with the gateway's own connection and keys; what the answers mean for a deployment is the
doctor's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from parlay.deployment import Deployment
from parlay.front.remote.server import Fetched
from parlay.front.remote.server import Server as Upstream
from parlay.reading import answers, counters
from parlay.reading.bounds import one_line
from parlay.reading.counters import Counters
from parlay.upstreams import Pool

_AT_ONCE = 64
_MAX_MODELS = 1000


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as its server lists it."""

    name: str
    facts: dict[str, str] = field(default_factory=dict)  # what else tells it from others


@dataclass(frozen=True, slots=True)
class UpstreamLook:
    """What one server showed."""

    pool: Pool
    url: str
    health: Fetched
    listing: Fetched
    metrics: Fetched
    engine: str | None = None  # who it says it is
    models: tuple[ServedModel, ...] = ()

    @property
    def counters(self) -> Counters:
        return counters.parse(self.metrics.text)

    @property
    def model(self) -> ServedModel | None:
        """The one that it would be asked for."""
        wanted = self.pool.model
        return next((m for m in self.models if wanted in (None, m.name)), None)


def look(deployment: Deployment) -> list[UpstreamLook]:
    """At everyone, in the order of the file."""
    return asyncio.run(_look(deployment))


async def _look(deployment: Deployment) -> list[UpstreamLook]:
    at_once = asyncio.Semaphore(_AT_ONCE)

    async def one(pool: Pool, url: str) -> UpstreamLook:
        async with at_once:
            return await _at(Upstream(pool, url, deployment.gateway))

    wanted = ((pool, url) for pool in deployment.upstreams for url in pool.urls)
    return await asyncio.gather(*(one(pool, url) for pool, url in wanted))


async def _at(up: Upstream) -> UpstreamLook:
    try:
        health = await up.fetch(up.pool.health)
        if health.status is None:
            # Nobody is there: asking again would only take the same time again.
            return UpstreamLook(up.pool, up.url, health, health, health)
        listing, metrics = await up.fetch("/v1/models"), await up.fetch("/metrics")
    finally:
        await up.close()
    rows = answers.listed((answers.object_of(listing.text) or {}).get("data"))
    rows = [answers.mapping(row) for row in rows[:_MAX_MODELS]]
    owner = next((answers.string(row.get("owned_by")) for row in rows), None)
    return UpstreamLook(
        up.pool,
        up.url,
        health,
        listing,
        metrics,
        engine=None if owner is None else one_line(owner, 40),
        models=tuple(_models(rows)),
    )


def _models(rows: list[dict[str, Any]]) -> Iterator[ServedModel]:
    for row in rows:
        name = answers.string(row.get("id"))
        if name is not None:
            yield ServedModel(one_line(name, 90), dict(_facts(row)))


def _facts(row: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """vLLM names folder and length; llama.cpp counts tokens and weights."""
    root, length = answers.string(row.get("root")), answers.count(row.get("max_model_len"))
    if root is not None:
        yield "root", one_line(root.rstrip("/").rsplit("/", 1)[-1], 90)
    if length is not None:
        yield "max_model_len", str(length)
    meta = answers.mapping(row.get("meta"))
    for key in ("n_vocab", "n_params"):
        value = meta.get(key)
        if isinstance(value, int):
            yield key, str(value)
