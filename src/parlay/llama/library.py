"""llama.cpp's shared library: start-up, its log, its devices, and the check of its return codes.

Knows nothing of models. Everything else in this package calls the C functions through `C`.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import re
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from parlay.errors import DecodeError, EngineError, LoadError
from parlay.llama import engines
from parlay.llama.binding import ON_LOG, Binding
from parlay.store import file_identity, fingerprint


class _Library:
    """The engine's functions, by their names in C. The first one that is wanted opens it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = self.__dict__[name] = getattr(_binding(), name)
        return found


def engine() -> engines.Engine:
    """The one this process has opened, or opens now."""
    return _opened()[0]


def _binding() -> Binding:
    return _opened()[1]


def _opened() -> tuple[engines.Engine, Binding]:
    with _opening:  # two threads must not open two
        if not _open:
            found = engines.find()
            _open.append((found, Binding(found.library)))
        return _open[0]


_opening = threading.Lock()
_open: list[tuple[engines.Engine, Binding]] = []
C: Any = _Library()

log = logging.getLogger("parlay.llama")

_LIBRARY = re.compile(r"(llama|ggml).*\.(so|dylib|dll)")
# ggml's levels: 1 debug, 2 info, 3 warning, 4 error, 5 continues the last line.
_LEVELS = {1: logging.DEBUG, 2: logging.DEBUG, 3: logging.INFO, 4: logging.WARNING}
_CONTINUED = 5
_last_level = logging.DEBUG
# llama.cpp says why a call failed only in its log; the newest lines end up in our errors.
_recent_errors: deque[str] = deque(maxlen=8)


def _log(level: int, text: bytes, _user_data: object) -> None:
    global _last_level  # noqa: PLW0603 - the C side has no other place to keep it
    if level != _CONTINUED:
        _last_level = _LEVELS.get(level, logging.DEBUG)
    line = text.decode("utf-8", "replace").rstrip()
    if line:
        log.log(_last_level, line)
        if _last_level == logging.WARNING:
            _recent_errors.append(line)


@functools.cache
def start() -> None:
    """Initialise llama.cpp once per process and route its log to `logging`."""
    C.llama_log_set(_on_log(), None)
    if engine().loads_kernels:
        C.ggml_backend_load_all_from_path(os.fsencode(engine().folder))
    C.llama_backend_init()
    if not C.ggml_backend_dev_count():
        raise EngineError(
            f"the engine {engine().folder} has no kernels for this processor; parlay engine build"
            " makes one for it"
        )


@functools.cache
def _on_log() -> object:
    """Made once and kept: the C side holds no reference."""
    return ON_LOG(_log)


# Starts a fresh list of what llama.cpp complains about; before every pass, and so no function.
forget_errors = _recent_errors.clear


def last_error() -> str:
    """The first thing llama.cpp complained about since `forget_errors`; later lines are echoes."""
    return _recent_errors[0] if _recent_errors else "llama.cpp gave no reason"


_DECODE_CODES = {
    1: "no room in the cache for this batch: lower the window or raise the context size",
    2: "the pass was aborted",
    -1: "the batch was invalid",
}


def check(code: int, call: str) -> None:
    """Raise unless a C call returned 0."""
    if code != 0:
        reason = _DECODE_CODES.get(code, last_error())
        raise DecodeError(f"{call} failed with code {code}: {reason}", code=code)


def made(handle: int | None, what: str) -> int:
    """What a C call made; LoadError, with llama.cpp's own reason, where that is nothing."""
    if not handle:
        raise LoadError(f"llama.cpp could not {what}: {last_error()}")
    return handle


def version() -> str:
    """llama.cpp's own version string."""
    return str(C.version)


@functools.cache
def build() -> str:
    """Tells this build's libraries from all others: two of one version may round apart. Compilers
    and linkers leave a hash of all that is in one near its beginning."""
    files = [p for p in engine().folder.iterdir() if p.is_file() and _LIBRARY.search(p.name)]
    return fingerprint(*sorted(set(map(file_identity, files))))


@dataclass(frozen=True, slots=True)
class Device:
    """Something llama.cpp can compute on."""

    name: str
    description: str
    kind: str  # cpu, gpu, igpu, accel
    free_bytes: int
    total_bytes: int


_CPU = 0
_KINDS = {_CPU: "cpu", 1: "gpu", 2: "igpu", 3: "accel"}


def device_handles() -> dict[str, int]:
    """Device names and the pointers llama.cpp knows them by."""
    start()
    handles = [C.ggml_backend_dev_get(i) for i in range(C.ggml_backend_dev_count())]
    return {C.ggml_backend_dev_name(h).decode(): h for h in handles}


def devices() -> list[Device]:
    """Every device this build of llama.cpp offers, with its memory now."""
    return [_device(name, handle) for name, handle in device_handles().items()]


def _device(name: str, handle: int) -> Device:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    C.ggml_backend_dev_memory(handle, ctypes.byref(free), ctypes.byref(total))
    return Device(
        name=name,
        description=C.ggml_backend_dev_description(handle).decode(),
        kind=_KINDS.get(C.ggml_backend_dev_type(handle), "accel"),
        free_bytes=free.value,
        total_bytes=total.value,
    )


def is_cpu(handle: int | None) -> bool:
    """Whether a device is a processor."""
    return handle is not None and C.ggml_backend_dev_type(handle) == _CPU


def memory_of(name: str) -> int | None:
    """The pointer of a device's memory, by its name such as CPU or CUDA0; None: no such device."""
    handle = device_handles().get(name)
    return None if handle is None else int(C.ggml_backend_dev_buffer_type(handle))


def gpu_names(chosen: tuple[str, ...] = ()) -> list[str]:
    """The GPUs a model's layers go to, in llama.cpp's order: integrated ones only if alone."""
    found = {d.name: d.kind for d in devices()}
    if chosen:
        return [name for name in chosen if found.get(name) in ("gpu", "igpu")]
    real = [name for name, kind in found.items() if kind == "gpu"]
    return real or [name for name, kind in found.items() if kind == "igpu"]


def has_gpu() -> bool:
    """Whether this build can put layers on a GPU that is there."""
    return any(d.kind in ("gpu", "igpu") for d in devices())


@functools.cache
def default_threads() -> int:
    """Physical cores this process may use. llama.cpp's threads spin: more than cores is ruin."""
    physical = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else physical
    return max(1, min(physical, allowed, _cgroup_cores() or physical))


def _cgroup_cores() -> int | None:
    """Whole cores of a container's CPU quota, if there is one."""
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="ascii") as file:
            quota, period = file.read().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else max(1, int(quota) // int(period))


def free_ram(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that can be filled now, within a container's limit if there is one."""
    free = int(psutil.virtual_memory().available)
    try:
        limit = int((cgroup / "memory.max").read_text("ascii"))
        used = int((cgroup / "memory.current").read_text("ascii"))
        stat = dict(
            line.split() for line in (cgroup / "memory.stat").read_text("ascii").splitlines()
        )
    except (OSError, ValueError):  # no such file, or no limit
        return free
    # Pages of files, such as mapped weights, count as used but go when they are needed.
    files = int(stat.get("active_file", 0)) + int(stat.get("inactive_file", 0))
    return min(free, max(0, limit - used + files))
