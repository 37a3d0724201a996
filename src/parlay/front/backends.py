"""Which backend a deployment asks for, and how it follows a deployment that was read again.

A new kind of backend is a file of its own and a line here. Knows deployments; knows no HTTP.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from parlay.backend import wire
from parlay.deployment import Deployment
from parlay.front.process_backend import ProcessBackend
from parlay.front.remote.backend import RemoteBackend

log = logging.getLogger("parlay.server")
Alert = Callable[[str, str | None], None]


class Running:
    """A backend, and the deployment it runs."""

    def __init__(self, backend: ProcessBackend | RemoteBackend, deployment: Deployment) -> None:
        self.backend = backend
        self.started_with = deployment
        self._runs = deployment

    async def start(self) -> None:
        """Until requests are answered."""
        await self.backend.start()

    async def follow(self, new: Deployment) -> None:
        """What the backend takes at once it takes at once; what is the engine's needs another
        engine, which takes over when it is ready, or after a drain where both do not fit."""
        if isinstance(self.backend, RemoteBackend):
            self.backend.apply(new)
        elif _of_engine(new) == _of_engine(self._runs):
            await self.backend.follow(told(new))
        else:
            beside = await self.backend.fits_beside(told(new))
            log.warning("another engine is loaded%s", "" if beside else " once this one is idle")
            await self.backend.replace(told(new), beside=beside)
        self._runs = new


def begin(deployment: Deployment, alert: Alert, given_up: Callable[[], None]) -> Running:
    """The backend of a deployment; `start` begins it."""
    if deployment.engine == "endpoints":
        if kept := without_effect(deployment):
            log.warning("set where the engines are started, without effect here: %s", kept)
        return Running(RemoteBackend(deployment, alert), deployment)
    server, runtime = deployment.server, deployment.runtime
    backend = ProcessBackend(
        wire.Hello(wire.VERSION, told(deployment)),
        max_restarts=server.max_restarts,
        most_pass_s=runtime.pass_timeout_s,
        alert=alert,
        given_up=given_up,
    )
    return Running(backend, deployment)


def without_effect(deployment: Deployment) -> str:
    """The keys that are set and that only an engine of ours can follow; empty: there are none."""
    sections = {
        "model": ("target", "drafter", "tokenizer", "lora"),
        "runtime": tuple(type(deployment.runtime).model_fields),
        "server": ("max_prompt_tokens", "parse_special_in_messages", "slot_save_path"),
        "monitoring": (
            "alert_on_acceptance_drop",
            "acceptance_drop",
            "cache_compaction_interval",
            "log_prompts",
            "memory_pressure_pct",
        ),
    }
    found = [
        f"{section}.{key}"
        for section, keys in sections.items()
        for key in keys
        if key in getattr(deployment, section).model_fields_set
    ]
    for rule in deployment.routes:
        given = {"draft": rule.draft, "window": rule.window}
        found += [f"routes.{rule.name}.{key}" for key, value in given.items() if value is not None]
    return ", ".join(found)


def told(deployment: Deployment) -> dict[str, Any]:
    """A deployment as an engine process reads it: whether there are keys, but no key."""
    return deployment.model_dump(mode="json", exclude_unset=True)


def _of_engine(deployment: Deployment) -> dict[str, Any]:
    """What another engine is needed for."""
    model = deployment.model.model_dump(exclude={"alias"})
    return {"model": model, "runtime": deployment.runtime.model_dump()}
