"""Clocks, temperature, power and load of the machine, as far as it tells; never an error.

Knows psutil and NVML, not who is being measured.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import psutil

from parlay.bench.sample import Readings

T = TypeVar("T")


class Sensors:
    """Reads the machine. One object for a run: NVML is opened once."""

    def __init__(self) -> None:
        self._gpu = _open_gpu()

    def read(self) -> Readings:
        """What can be read now."""
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
        nvml, handle = self._gpu
        return _try(lambda: read(nvml, handle))


def _open_gpu() -> tuple[Any, Any] | None:
    """NVML and its first device, where both are there."""
    with contextlib.suppress(Exception):  # no package, no driver, no card: all the same here
        import pynvml

        pynvml.nvmlInit()
        return pynvml, pynvml.nvmlDeviceGetHandleByIndex(0)
    return None


def _try(read: Callable[[], T]) -> T | None:
    # Sensors fail in as many ways as there are machines; a missing reading is not an error.
    with contextlib.suppress(Exception):
        return read()
    return None


def _cpu_celsius() -> float | None:
    read = getattr(psutil, "sensors_temperatures", None)
    if read is None:
        return None
    return _hottest(entry.current for entries in read().values() for entry in entries)


def _hottest(values: Iterable[float]) -> float | None:
    return max((v for v in values if -50 < v < 150), default=None)
