"""A new deployment for a running service, without dropping a request.

Knows which keys can change while the target stays loaded, and says which would need a restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from parlay.deployment import Deployment
from parlay.engine.engine import Engine
from parlay.engine.start import FREE_PROPOSERS
from parlay.errors import ParlayError
from parlay.routing import parse_draft
from parlay.server.lifecycle.engine_start import drafter_paths, keep_fit
from parlay.server.lifecycle.service import Service
from parlay.web.hosting import kept_old

log = logging.getLogger("parlay.server")

# What is read while a request runs, or can be exchanged between two rounds.
_LIVE = {
    "model": {"drafter", "alias"},
    "runtime": {
        "speculative_window",
        "min_token_acceptance",
        "min_sequence_acceptance",
        "fallback_threshold_pct",
        "vram_budget_gb",
        "controller",
        "context_full",
    },
    "monitoring": {"*"},
    "server": {"*"},
}
_FIXED = {"monitoring": {"metrics_endpoint"}, "server": {"host", "port", "cors_origins"}}


async def reload(service: Service, read: Callable[[], Deployment]) -> bool:
    """Read the deployment again and act on it; a file that is wrong changes nothing."""
    try:
        new = keep_fit(await asyncio.to_thread(read), service.started_with)
        drafters = await asyncio.to_thread(drafter_paths, new)  # a model by its name may be fetched
        wanted = parse_draft(new.model.drafter)
        old = service.deployment
        service.apply(new)
    except ParlayError as error:
        return kept_old(service.alerts, error)
    service.alerts.set("reload", None)
    _tell_restart(service, needs_restart(service.started_with, new))
    exchange_free(service.engine, wanted)
    if old.model.drafter != new.model.drafter or service.drafter.state == "absent":
        await service.drafter.exchange(drafters)
    log.warning("the deployment was reloaded")
    return True


def needs_restart(started: Deployment, new: Deployment) -> list[str]:
    """Changed keys that a loaded target cannot follow."""
    found = []
    for section, live in _LIVE.items():
        before, after = getattr(started, section), getattr(new, section)
        for key in type(before).model_fields:
            moves = "*" in live or key in live
            fixed = not moves or key in _FIXED.get(section, set())
            if fixed and getattr(before, key) != getattr(after, key):
                found.append(f"{section}.{key}")
    return found


def _tell_restart(service: Service, keys: list[str]) -> None:
    text = f"{', '.join(keys)} changed and will act after a restart" if keys else None
    told = service.alerts.active.get("restart_needed")
    if told is not None and told.message != text:
        service.alerts.set("restart_needed", None)
    service.alerts.set("restart_needed", text)


def exchange_free(engine: Engine, wanted: tuple[str, ...]) -> None:
    """Proposers without a model come and go between two rounds."""

    def exchange() -> None:
        for name, make in FREE_PROPOSERS.items():
            if name in wanted and name not in engine.drafts.proposers:
                engine.drafts.proposers[name] = make(engine.settings.remember_tokens)
            elif name not in wanted:
                engine.drafts.proposers.pop(name, None)

    engine.call(exchange)
