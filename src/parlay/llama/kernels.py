"""Which kernels a context computes attention with on a CPU: ggml's usual ones, or its plain one.

Usually single tokens past 512 cells have a kernel of their own, and prompts have another: faster,
and each rounds in its own way. The plain one (ggml's reference) takes all passes alike. Knows
nothing of passes. llama.cpp does not say by which backends a context computes, but exports the call
that does under its C++ name; where that is missing nothing can be chosen.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from parlay.llama.library import C

PROMPT_ROWS = 64  # of a pass, from which on prompts have a kernel of their own

_POINTER = ctypes.c_void_p
# Name, as the compilers of Linux and macOS write it; arguments; result.
_CALLS: dict[str, tuple[str, list[Any], Any]] = {
    "scheduler": ("_ZNK13llama_context9get_schedEv", [_POINTER], _POINTER),
    "n_backends": ("ggml_backend_sched_get_n_backends", [_POINTER], ctypes.c_int),
    "backend": ("ggml_backend_sched_get_backend", [_POINTER, ctypes.c_int], _POINTER),
    "is_cpu": ("ggml_backend_is_cpu", [_POINTER], ctypes.c_bool),
    "use_plain": ("ggml_backend_cpu_set_use_ref", [_POINTER, ctypes.c_bool], None),
}


class Kernels:
    """The choice of one context, for all passes until it is changed; first the usual ones."""

    def __init__(self, handle: int) -> None:
        calls = _calls()
        assert calls is not None, "ask `can_choose` first"
        self._use_plain = calls["use_plain"]
        scheduler = calls["scheduler"](handle)
        every = [calls["backend"](scheduler, i) for i in range(calls["n_backends"](scheduler))]
        self._cpus = [backend for backend in every if calls["is_cpu"](backend)]
        self._plain = False

    def choose(self, *, plain: bool) -> None:
        """From the next pass on."""
        if plain != self._plain:
            self._plain = plain
            for backend in self._cpus:
                self._use_plain(backend, plain)


def can_choose() -> bool:
    """Whether this build lets kernels be chosen."""
    return _calls() is not None


@functools.cache
def _calls() -> dict[str, Any] | None:
    """What is needed, by our names; a look-up in libllama searches what it links to."""
    found: dict[str, Any] = {}
    for name, (symbol, arguments, result) in _CALLS.items():
        try:
            call = getattr(C._lib, symbol)
        except AttributeError:
            return None
        call.argtypes, call.restype = arguments, result
        found[name] = call
    return found
