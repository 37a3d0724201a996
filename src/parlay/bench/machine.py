"""The machine a result comes from: what matters for speed, its memory's bandwidth, its sensors.

Knows the operating system, numpy and NVML; has no host name, no user name and no path in it.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psutil

from parlay.bench.record import Gpu, Machine, Readings
from parlay.llama import library
from parlay.reading.bounds import one_line

T = TypeVar("T")
_LABEL = 90
_READ_BYTES = 256 << 20  # far larger than usual caches
_TRIES = 3


def describe() -> Machine:
    """Describe this machine; measures its memory for about a second."""
    n_threads = library.default_threads()
    nominal, driver = _nvml()
    gpus = [
        Gpu(name=name, memory_bytes=device.total_bytes, nominal_bandwidth=nominal.get(name))
        for device in library.devices()
        if device.kind in ("gpu", "igpu") and (name := one_line(device.description, _LABEL))
    ]
    system = f"{platform.system()} {platform.release().split('-')[0]} {platform.machine()}"
    return Machine(
        cpu=_cpu(),
        n_cores=psutil.cpu_count(logical=False) or psutil.cpu_count() or 1,
        n_threads=n_threads,
        memory_bytes=psutil.virtual_memory().total,
        memory_bandwidth=round(read_bandwidth(n_threads)),
        cache_bytes=cache_bytes(),
        gpus=gpus,
        os=one_line(system, _LABEL),
        driver=driver,
        python=platform.python_version(),
        llama_cpp=one_line(library.version(), _LABEL),
    )


def _cpu() -> str:
    found = ""
    if sys.platform == "darwin":
        asked = ["sysctl", "-n", "machdep.cpu.brand_string"]
        found = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
    else:
        with contextlib.suppress(OSError):
            text = Path("/proc/cpuinfo").read_text("utf-8", "replace")
            found = (re.findall(r"^model name\s*:\s*(.+)$", text, re.MULTILINE) or [""])[0]
    name = found or platform.processor() or platform.machine() or "unknown"
    return one_line(re.sub(r"\((R|TM|r|tm)\)", "", name), _LABEL)


def _nvml() -> tuple[dict[str, float], str | None]:
    """Nominal bandwidth by card name, and the driver's version."""

    def text(value: Any) -> str:
        return one_line(value.decode() if isinstance(value, bytes) else str(value), _LABEL)

    facts: dict[str, float] = {}
    with contextlib.suppress(Exception):  # no package, no driver, no card: nothing to add
        import pynvml as nvml

        nvml.nvmlInit()
        for index in range(nvml.nvmlDeviceGetCount()):
            card = nvml.nvmlDeviceGetHandleByIndex(index)
            clock_hz = nvml.nvmlDeviceGetMaxClockInfo(card, nvml.NVML_CLOCK_MEM) * 1e6
            bus_bytes = nvml.nvmlDeviceGetMemoryBusWidth(card) / 8
            facts[text(nvml.nvmlDeviceGetName(card))] = float(clock_hz * 2 * bus_bytes)
        return facts, text(nvml.nvmlSystemGetDriverVersion())
    return facts, None


def read_bandwidth(n_threads: int, n_bytes: int = _READ_BYTES) -> float:
    """Bytes a second, the best of some tries, every thread reading its own part."""
    n_bytes = min(n_bytes, psutil.virtual_memory().available // 4)
    data = np.ones(max(1, n_bytes // 8), np.int64)
    parts = np.array_split(data, max(1, n_threads))

    def once(pool: ThreadPoolExecutor) -> float:
        began = time.perf_counter()
        # A maximum reads every byte once, is vectorised, and gives Python's lock free.
        list(pool.map(np.max, parts))
        return time.perf_counter() - began

    with ThreadPoolExecutor(max(1, n_threads)) as pool:
        return data.nbytes / min(once(pool) for _ in range(_TRIES))


def cache_bytes() -> int | None:
    """The largest CPU cache: a model that fits into it is not bound by memory."""
    sizes = []
    for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = file.read_text("ascii").strip()
        unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:])
        if unit and text[:-1].isdigit():
            sizes.append(int(text[:-1]) * unit)
    return max(sizes, default=None)


class Sensors:
    """Clocks, temperature, power and load. One object for a run: NVML is opened once."""

    def __init__(self) -> None:
        self._gpu: tuple[Any, Any] | None = None
        with contextlib.suppress(Exception):  # no package, no driver, no card: all the same here
            import pynvml

            pynvml.nvmlInit()
            self._gpu = pynvml, pynvml.nvmlDeviceGetHandleByIndex(0)

    def read(self) -> Readings:
        """What can be read now; what cannot is absent, never an error."""
        return Readings(
            load_1min=_try(lambda: os.getloadavg()[0]),
            cpu_mhz=_try(lambda: float(psutil.cpu_freq().current)),
            cpu_celsius=_try(_cpu_celsius),
            gpu_mhz=self._of_gpu(lambda n, h: float(n.nvmlDeviceGetClockInfo(h, 0))),
            gpu_celsius=self._of_gpu(lambda n, h: float(n.nvmlDeviceGetTemperature(h, 0))),
            gpu_watts=self._of_gpu(lambda n, h: n.nvmlDeviceGetPowerUsage(h) / 1e3),
        )

    def _of_gpu(self, read: Callable[[Any, Any], float]) -> float | None:
        if self._gpu is None:
            return None
        nvml, card = self._gpu
        return _try(lambda: read(nvml, card))


def _try(read: Callable[[], T]) -> T | None:
    # Sensors fail in as many ways as there are machines; a missing reading is not an error.
    with contextlib.suppress(Exception):
        return read()
    return None


def _cpu_celsius() -> float | None:
    found = psutil.sensors_temperatures()  # not on every system: then it is not read
    values = (entry.current for entries in found.values() for entry in entries)
    return max((value for value in values if -50 < value < 150), default=None)
