"""A memory plan: what must be held, where, and whether it fits what is free.

Pure arithmetic over items and pools; reads neither files nor devices.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from parlay.llama.placement import check_split
from parlay.llama.settings import CPU
from parlay.planning.devices import DRIVER_BYTES, GIB, MemoryPool
from parlay.planning.needs import Load, PlanItem, check_cache_types, needs

Verdict = Literal["fits", "spills", "does not fit"]


# Earlier prompts are kept in no more than this part of the RAM that is left.
_CACHE_PART = 2


@dataclass(frozen=True, slots=True)
class Plan:
    """Items against pools. llama.cpp shares a model's layers out over the GPUs, in proportion to
    what is free, so each of them has to hold its part."""

    loads: tuple[Load, ...]
    items: tuple[PlanItem, ...]
    pools: tuple[MemoryPool, ...]
    budget: int | None  # a hard limit for the GPU, or for RAM where there is none

    @property
    def has_gpu(self) -> bool:
        return any(pool.kind != "ram" for pool in self.pools)

    @property
    def gpus(self) -> tuple[MemoryPool, ...]:
        return tuple(pool for pool in self.pools if pool.kind != "ram")

    def on_device(self, device: int) -> int:
        """What one GPU has to hold."""
        return sum(i.n_bytes for i in self.items if i.place == "gpu" and i.device == device)

    @property
    def on_gpu(self) -> int:
        return sum(item.n_bytes for item in self.items if item.place == "gpu")

    @property
    def in_ram(self) -> int:
        return sum(item.n_bytes for item in self.items if item.place == "ram")

    @property
    def gpu_free(self) -> int:
        """What may be used: what is free, and not more than the budget."""
        free = sum(pool.free for pool in self.pools if pool.kind != "ram")
        return free if self.budget is None else min(free, self.budget)

    @property
    def ram_free(self) -> int:
        free = sum(pool.free for pool in self.pools if pool.kind == "ram")
        if self.budget is not None and not self.has_gpu:
            return min(free, self.budget)
        shared = any(pool.kind == "unified" for pool in self.pools)
        return free - self.on_gpu if shared else free

    @property
    def left(self) -> int:
        """Beside all of this: of the GPU, or of RAM where there is none."""
        return self.gpu_free - self.on_gpu if self.has_gpu else self.ram_free - self.in_ram

    @property
    def verdict(self) -> Verdict:
        """`spills`: the GPU is too small, but with RAM there is room; a hard limit forbids it."""
        if self.in_ram > self.ram_free:
            return "does not fit"
        if self.on_gpu <= self.gpu_free:
            held = all(self.on_device(i) <= pool.free for i, pool in enumerate(self.gpus))
            return "fits" if held else "does not fit"
        if self.budget is not None:
            return "does not fit"
        missing = self.on_gpu - self.gpu_free
        return "spills" if missing <= self.ram_free - self.in_ram else "does not fit"

    @property
    def exact(self) -> bool:
        """Whether every pass was followed operation by operation."""
        return all(load.shape.followed for load in self.loads)

    def as_dict(self) -> dict[str, Any]:
        """The public JSON form."""
        return {
            "verdict": self.verdict,
            "gpu": {"needed": self.on_gpu, "free": self.gpu_free},
            "ram": {"needed": self.in_ram, "free": self.ram_free},
            "gpus": [
                {"name": pool.name, "needed": self.on_device(i), "free": pool.free}
                for i, pool in enumerate(self.gpus)
            ],
            "budget": self.budget,
            "compute_buffers": "computed" if self.exact else "estimated",
            "items": [
                {
                    "model": i.model,
                    "what": i.what,
                    "place": i.place,
                    "device": i.device,
                    "bytes": i.n_bytes,
                }
                for i in self.items
            ],
            "pools": [
                {"name": p.name, "kind": p.kind, "total": p.total, "free": p.free}
                for p in self.pools
            ],
        }


def make_plan(
    loads: Sequence[Load],
    pools: Sequence[MemoryPool],
    *,
    budget_gb: float | None = None,
    repacked: frozenset[str] = frozenset(),
) -> Plan:
    """Lay out every model of `loads` over the pools. A GB of a budget is 2^30 bytes."""
    left = [pool.free for pool in pools if pool.kind != "ram"]
    items: list[PlanItem] = []
    for load in loads:
        check_cache_types(load.shape, load.context)
        check_split(load.model, _gpus_of(load, pools))
        own = _chosen(load, len(left))
        found = [
            replace(item, device=own[item.device])
            if item.place == "gpu" and item.device < len(own)
            else item
            for item in needs(load, gpus=[left[i] for i in own], repacked=repacked)
        ]
        for item in found:  # the next model finds less; a device that is not there is refused later
            if item.place == "gpu" and item.device < len(left):
                left[item.device] -= item.n_bytes
        items += found
    used = sorted({item.device for item in items if item.place == "gpu"})
    items += [PlanItem("both", "driver", "gpu", DRIVER_BYTES, device) for device in used]
    budget = None if budget_gb is None else int(budget_gb * GIB)
    made = Plan(tuple(loads), tuple(items), tuple(pools), budget)
    wanted = loads[0].context.prompt_cache_bytes if loads else 0
    cache = min(wanted, max(0, made.ram_free - made.in_ram) // _CACHE_PART)
    if not cache:
        return made
    return replace(made, items=(*items, PlanItem("target", "prompt cache", "ram", cache)))


def _chosen(load: Load, n_gpus: int) -> list[int]:
    """Which of the GPUs a model may use: by the numbers in the names it was given, else all."""
    if not load.model.devices:
        return list(range(n_gpus))
    named = [name for name in load.model.devices if not name.startswith(CPU)]
    numbers = [int(found[0]) if (found := re.findall(r"\d+$", name)) else 0 for name in named]
    return [number for number in dict.fromkeys(numbers) if number < n_gpus]


def _gpus_of(load: Load, pools: Sequence[MemoryPool]) -> list[str]:
    """The GPUs a model may be split over: those it was given, else all."""
    chosen = [name for name in load.model.devices if not name.startswith(CPU)]
    return chosen or [pool.name for pool in pools if pool.kind != "ram"]
