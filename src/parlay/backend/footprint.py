"""The memory that was planned for what is loaded, held against what is used.

Knows the planner and the devices; reads model headers, once for each set of models.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

from parlay.backend.memory_pressure import process_bytes
from parlay.backend.opening import needed_gb
from parlay.deployment import Deployment
from parlay.errors import ParlayError
from parlay.planning.devices import GIB, pools

log = logging.getLogger("parlay.server")
_GPU_EVERY_S = 5.0  # asking a driver takes its time


class Footprint:
    """Planned and used bytes of the models of one deployment."""

    def __init__(self, deployment: Deployment, *, on_gpu: bool) -> None:
        self._deployment = deployment
        self._on_gpu = on_gpu
        self._planned: dict[tuple[Path, ...], int | None] = {}
        self._gpu_bytes = 0
        self._gpu_read = float("-inf")

    def look(self, drafters: tuple[Path, ...]) -> dict[str, Any]:
        """Where the models are, what that should take, and what is taken there: of a GPU all that
        is used, whoever uses it; of RAM this process's part. Reads headers: not on a loop."""
        if drafters not in self._planned:
            self._planned = {drafters: self._needed(drafters)}
        if self._on_gpu and time.monotonic() - self._gpu_read > _GPU_EVERY_S:
            self._gpu_read = time.monotonic()
            self._gpu_bytes = sum(p.total - p.free for p in pools() if p.kind != "ram")
        return {
            "place": "gpu" if self._on_gpu else "ram",
            "planned_bytes": self._planned[drafters],
            "used_bytes": self._gpu_bytes if self._on_gpu else process_bytes(),
        }

    def _needed(self, drafters: tuple[Path, ...]) -> int | None:
        """None where the planner does not know an architecture."""
        try:
            return int(needed_gb(self._deployment, drafters) * GIB)
        except (ParlayError, OSError) as error:
            log.info("no memory plan for what is loaded: %s", error)
            return None
