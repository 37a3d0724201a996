"""Which kernels a context computes attention with on a CPU: ggml's usual ones, or its plain one.

Usually single tokens past 512 cells have a kernel of their own, and prompts have another: faster,
and each rounds in its own way. The plain one (ggml's reference) takes all passes alike. llama.cpp
does not say which backends a context computes with, but exports the call that does under its C++
name: where that is missing, kernels cannot be chosen. Knows nothing of passes.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from parlay.llama.library import C, is_cpu

PROMPT_ROWS = 64  # of a pass, from which on prompts have a kernel of their own

_POINTER, _NUMBER = ctypes.c_void_p, ctypes.c_int
# Name, as the compilers of Linux and macOS write it; result; arguments.
_CALLS: dict[str, tuple[str, Any, list[Any]]] = {
    "scheduler": ("_ZNK13llama_context9get_schedEv", _POINTER, [_POINTER]),
    "n_backends": ("ggml_backend_sched_get_n_backends", _NUMBER, [_POINTER]),
    "backend": ("ggml_backend_sched_get_backend", _POINTER, [_POINTER, _NUMBER]),
    "device": ("ggml_backend_get_device", _POINTER, [_POINTER]),
    "registry": ("ggml_backend_dev_backend_reg", _POINTER, [_POINTER]),
    "function": ("ggml_backend_reg_get_proc_address", _POINTER, [_POINTER, ctypes.c_char_p]),
}
_USE_PLAIN = b"ggml_backend_cpu_set_use_ref"
_SWITCH = ctypes.CFUNCTYPE(None, _POINTER, ctypes.c_bool)


class Kernels:
    """The choice of one context, for all passes until it is changed; first the usual ones."""

    def __init__(self, handle: int) -> None:
        self._switches = [
            (switch, backend)
            for backend in backends(handle)
            if is_cpu(device_of(backend)) and (switch := _switch_of(backend)) is not None
        ]
        self._plain = False

    def choose(self, *, plain: bool) -> None:
        """From the next pass on."""
        if plain != self._plain:
            self._plain = plain
            for switch, backend in self._switches:
                switch(backend, plain)


def can_choose() -> bool:
    """Whether this engine lets kernels be chosen."""
    return _calls() is not None


def backends(handle: int) -> list[int]:
    """ggml's parts that a context computes with; none where the engine does not tell."""
    calls = _calls()
    if calls is None:
        return []
    scheduler = calls["scheduler"](handle)
    return [calls["backend"](scheduler, i) for i in range(calls["n_backends"](scheduler))]


def device_of(backend: int) -> int | None:
    """The device a backend computes on."""
    calls = _calls()
    found: int | None = calls["device"](backend) if calls is not None else None
    return found


def function_of(backend: int, name: bytes) -> int | None:
    """A function of the library that a backend is in, wherever ggml has loaded that from."""
    calls = _calls()
    if calls is None:
        return None
    found: int | None = calls["function"](calls["registry"](device_of(backend)), name)
    return found


def _switch_of(backend: int) -> Any | None:
    address = function_of(backend, _USE_PLAIN)
    return _SWITCH(address) if address else None


@functools.cache
def _calls() -> dict[str, Any] | None:
    found = {
        name: C.optional(symbol, result, *arguments)
        for name, (symbol, result, arguments) in _CALLS.items()
    }
    return None if None in found.values() else found
