"""Measures how fast this machine's memory can be read: the ceiling of plain decoding.

Knows numpy and threads; nothing of models.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import numpy as np
import psutil

N_BYTES: Final = 256 << 20
_TIMES: Final = 3


def read_bandwidth(n_threads: int, n_bytes: int = N_BYTES) -> float:
    """Bytes a second, the best of some tries, every thread reading its own part.

    The buffer is far larger than usual caches; a machine with a larger one is told by
    `cache_bytes`.
    """
    n_bytes = min(n_bytes, psutil.virtual_memory().available // 4)
    data = np.ones(max(1, n_bytes // 8), np.int64)
    parts = np.array_split(data, max(1, n_threads))
    with ThreadPoolExecutor(max(1, n_threads)) as pool:
        best = min(_time(pool, parts) for _ in range(_TIMES))
    return data.nbytes / best


def _time(
    pool: ThreadPoolExecutor, parts: list[np.ndarray[tuple[int, ...], np.dtype[np.int64]]]
) -> float:
    began = time.perf_counter()
    # A maximum reads every byte once, is vectorised, and gives Python's lock free.
    list(pool.map(np.max, parts))
    return time.perf_counter() - began


def cache_bytes() -> int | None:
    """The largest CPU cache: a model that fits into it is not bound by memory."""
    sizes = []
    for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = file.read_text("ascii").strip()
        unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:])
        if unit and text[:-1].isdigit():
            sizes.append(int(text[:-1]) * unit)
    return max(sizes, default=None)
