"""The machine a result comes from: what matters for speed, nothing that names it or its owner.

Knows the operating system and NVML; has no host name, no user name and no path in it.
"""

from __future__ import annotations

import contextlib
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import psutil
from pydantic import Field

from parlay.bench.bandwidth import cache_bytes, read_bandwidth
from parlay.llama import library
from parlay.reading.bounds import Label, Strict, one_line

Bytes = Annotated[int, Field(ge=0, le=1 << 60)]
BytesPerSecond = Annotated[float, Field(gt=0, le=1e15, allow_inf_nan=False)]


class Gpu(Strict):
    """A card that llama.cpp computes on."""

    name: Label
    memory_bytes: Bytes
    # From its memory clock and bus width: the maker's figure, not a measurement.
    nominal_bandwidth: BytesPerSecond | None = None


class Machine(Strict):
    """Enough to compare with another machine."""

    cpu: Label
    n_cores: Annotated[int, Field(ge=1, le=100_000)]
    n_threads: Annotated[int, Field(ge=1, le=100_000)]  # that llama.cpp uses
    memory_bytes: Bytes
    memory_bandwidth: BytesPerSecond  # measured, reading
    cache_bytes: Bytes | None
    gpus: list[Gpu] = Field(default=[], max_length=64)
    os: Label
    driver: Label | None = None
    python: Label
    llama_cpp: Label


def describe() -> Machine:
    """Describe this machine; measures its memory for about a second."""
    n_threads = library.default_threads()
    gpus, driver = _gpus()
    return Machine(
        cpu=_cpu(),
        n_cores=psutil.cpu_count(logical=False) or psutil.cpu_count() or 1,
        n_threads=n_threads,
        memory_bytes=psutil.virtual_memory().total,
        memory_bandwidth=round(read_bandwidth(n_threads)),
        cache_bytes=cache_bytes(),
        gpus=gpus,
        os=one_line(
            f"{platform.system()} {platform.release().split('-')[0]} {platform.machine()}", 90
        ),
        driver=driver,
        python=platform.python_version(),
        llama_cpp=one_line(library.version(), 90),
    )


def _cpu() -> str:
    if sys.platform == "darwin":
        asked = ["sysctl", "-n", "machdep.cpu.brand_string"]
        found = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
    else:
        found = _cpuinfo("model name")
    name = found or platform.processor() or platform.machine() or "unknown"
    return one_line(re.sub(r"\((R|TM|r|tm)\)", "", name), 90)


def _cpuinfo(key: str) -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == key:
                return value.strip()
    return ""


def _gpus() -> tuple[list[Gpu], str | None]:
    """The cards llama.cpp sees; NVML adds what only it knows."""
    facts, driver = _nvml()
    found = []
    for device in library.devices():
        if device.kind in ("gpu", "igpu"):
            name = one_line(device.description, 90)
            found.append(
                Gpu(
                    name=name,
                    memory_bytes=device.total_bytes,
                    nominal_bandwidth=facts.get(name),
                )
            )
    return found, driver


def _nvml() -> tuple[dict[str, float], str | None]:
    """Nominal bandwidth by card name, and the driver's version."""
    facts: dict[str, float] = {}
    with contextlib.suppress(Exception):  # no package, no driver, no card: nothing to add
        import pynvml as nvml

        nvml.nvmlInit()
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            facts[_text(nvml.nvmlDeviceGetName(handle))] = _nominal(nvml, handle)
        return facts, _text(nvml.nvmlSystemGetDriverVersion())
    return facts, None


def _nominal(nvml: Any, handle: Any) -> float:
    clock_hz = nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM) * 1e6
    return float(clock_hz * 2 * nvml.nvmlDeviceGetMemoryBusWidth(handle) / 8)


def _text(value: Any) -> str:
    return one_line(value.decode() if isinstance(value, bytes) else str(value), 90)
