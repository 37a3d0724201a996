"""The memory there is: GPUs and RAM, and how much of each is free now.

Asks drivers, sysfs and cgroups; knows nothing of models.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

GIB = 1 << 30
# Beside what llama.cpp counts: context, kernels and library work space of a GPU's driver;
# 610 to 616 MiB for 8B to 27B on an H200.
DRIVER_BYTES = 640 << 20
# The share of a Mac's memory that Metal will use.
_METAL_SHARE = 0.75


@dataclass(frozen=True, slots=True)
class MemoryPool:
    """Memory of one kind."""

    name: str
    kind: Literal["gpu", "ram", "unified"]
    total: int
    free: int
    n_processes: int = 0  # others that hold some of it; 0 also where it cannot be known


def pools() -> list[MemoryPool]:
    """Every GPU found, then RAM."""
    if platform.system() == "Darwin":
        return [_apple(), ram()]
    return [*_nvidia(), *_amd(), ram()]


def pretend(gpu_gb: float, ram_pool: MemoryPool) -> list[MemoryPool]:
    """A GPU of so many GiB, empty, beside the RAM that is there: to plan for another machine."""
    size = int(gpu_gb * GIB)
    return [MemoryPool(f"GPU of {gpu_gb:g} GB", "gpu", size, size), ram_pool]


def _nvidia() -> Iterable[MemoryPool]:
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return [_nvidia_pool(pynvml, handle) for handle in handles]
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()


def _nvidia_pool(nvml: object, handle: object) -> MemoryPool:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)  # type: ignore[attr-defined]
    name = nvml.nvmlDeviceGetName(handle)  # type: ignore[attr-defined]
    try:
        processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)  # type: ignore[attr-defined]
    except nvml.NVMLError:  # type: ignore[attr-defined]
        processes = []
    name = name.decode() if isinstance(name, bytes) else str(name)
    return MemoryPool(name, "gpu", int(memory.total), int(memory.free), len(processes))


def _amd(drm: Path = Path("/sys/class/drm")) -> Iterable[MemoryPool]:
    """AMD's driver tells sizes in files."""
    for card in sorted(drm.glob("card[0-9]*/device")):
        total = _number(card / "mem_info_vram_total")
        used = _number(card / "mem_info_vram_used")
        if total is not None and used is not None:
            yield MemoryPool(f"AMD {card.parent.name}", "gpu", total, total - used)


def _apple() -> MemoryPool:
    memory = psutil.virtual_memory()
    total = int(memory.total * _METAL_SHARE)
    return MemoryPool("Apple GPU (shares RAM)", "unified", total, min(total, memory.available))


def ram(cgroup: Path = Path("/sys/fs/cgroup")) -> MemoryPool:
    """RAM, or what a container's limit leaves of it."""
    memory = psutil.virtual_memory()
    limit = _number(cgroup / "memory.max")
    used = _number(cgroup / "memory.current")
    if limit is None or used is None or limit >= memory.total:
        return MemoryPool("RAM", "ram", memory.total, memory.available)
    # Pages of files are counted as used but go when they are needed.
    evictable = _stat(cgroup / "memory.stat", "inactive_file") or 0
    free = max(0, limit - used + evictable)
    return MemoryPool("RAM (container limit)", "ram", limit, min(free, memory.available))


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text("ascii"))
    except (OSError, ValueError):  # no such file, or "max"
        return None


def _stat(path: Path, key: str) -> int | None:
    try:
        lines = path.read_text("ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{key} ")), None)
