"""The backends that a context computes with: ggml's parts that hold threads, kernels, recordings.

llama.cpp does not say which they are, but exports the call that does under its C++ name; where that
is missing nothing can be done about them. Knows neither passes nor what is done about them.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from parlay.llama.library import C

_POINTER = ctypes.c_void_p
_WORDS = 19  # ggml's record of a backend: its device, and then its own data, come last
# Name, as the compilers of Linux and macOS write it; arguments; result.
_CALLS: dict[str, tuple[str, list[Any], Any]] = {
    "scheduler": ("_ZNK13llama_context9get_schedEv", [_POINTER], _POINTER),
    "n_backends": ("ggml_backend_sched_get_n_backends", [_POINTER], ctypes.c_int),
    "backend": ("ggml_backend_sched_get_backend", [_POINTER, ctypes.c_int], _POINTER),
    "is_cpu": ("ggml_backend_is_cpu", [_POINTER], ctypes.c_bool),
    "device": ("ggml_backend_get_device", [_POINTER], _POINTER),
    "name": ("ggml_backend_name", [_POINTER], ctypes.c_char_p),
    "use_plain": ("ggml_backend_cpu_set_use_ref", [_POINTER, ctypes.c_bool], None),
    "use_threads": ("ggml_backend_cpu_set_n_threads", [_POINTER, ctypes.c_int], None),
}


def can_find() -> bool:
    """Whether this build tells."""
    return calls() is not None


def backends(handle: int) -> list[int]:
    """Those of a context; ask `can_find` first."""
    known = calls()
    assert known is not None, "ask `can_find` first"
    scheduler = known["scheduler"](handle)
    return [known["backend"](scheduler, i) for i in range(known["n_backends"](scheduler))]


def cpu_backends(handle: int) -> list[int]:
    """Those that compute on a CPU."""
    known = calls()
    return [each for each in backends(handle) if known is not None and known["is_cpu"](each)]


def data_of(backend: int) -> int | None:
    """Where a backend's own data are; None where its record does not look as it should."""
    known = calls()
    assert known is not None, "ask `can_find` first"
    words = list((ctypes.c_size_t * _WORDS).from_address(backend))
    device = known["device"](backend)
    return words[words.index(device) + 1] if device in words[:-1] else None


@functools.cache
def calls() -> dict[str, Any] | None:
    """ggml's calls by our names; a look-up in libllama searches what it links to."""
    found: dict[str, Any] = {}
    for name, (symbol, arguments, result) in _CALLS.items():
        try:
            call = getattr(C._lib, symbol)
        except AttributeError:
            return None
        call.argtypes, call.restype = arguments, result
        found[name] = call
    return found
