"""The memory that was planned for what is loaded, held against what is used.

Knows the planner and the devices; reads model headers, once for each set of models.
"""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

from parlay.errors import ParlayError
from parlay.planning.devices import GIB, pools
from parlay.server.lifecycle.engine_start import needed_gb
from parlay.server.lifecycle.service import Service
from parlay.web.memory_pressure import process_bytes

log = logging.getLogger("parlay.server")
_GPU_EVERY_S = 5.0  # asking a driver takes its time


class Footprint:
    """Planned and used bytes of a service's models."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._planned: dict[tuple[Path, ...], int | None] = {}
        self._gpu_bytes = 0
        self._gpu_read = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Where the models are, what that should take, and what is taken there."""
        on_gpu = self._service.engine.model.on_gpu
        return {
            "place": "gpu" if on_gpu else "ram",
            "planned_bytes": self._planned.get(self._drafters),
            # Of a GPU all that is used, whoever uses it; of RAM this process's part.
            "used_bytes": self._on_gpu() if on_gpu else process_bytes(),
        }

    async def prepare(self) -> None:
        """Plan for the models that are loaded now, in a thread: headers are read."""
        paths = self._drafters
        if paths not in self._planned:
            planned = await asyncio.to_thread(_needed, self._service, paths)
            self._planned = {paths: planned}

    @property
    def _drafters(self) -> tuple[Path, ...]:
        drafter = self._service.drafter
        return drafter.paths if drafter.state == "ready" else ()

    def _on_gpu(self) -> int:
        if time.monotonic() - self._gpu_read > _GPU_EVERY_S:
            self._gpu_read = time.monotonic()
            self._gpu_bytes = sum(p.total - p.free for p in pools() if p.kind != "ram")
        return self._gpu_bytes


def _needed(service: Service, drafters: tuple[Path, ...]) -> int | None:
    """None where the planner does not know an architecture."""
    try:
        return int(needed_gb(service.deployment, drafters) * GIB)
    except (ParlayError, OSError) as error:
        log.info("no memory plan for what is loaded: %s", error)
        return None
