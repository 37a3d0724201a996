"""Where ggml keeps a backend's own data. Knows the form of ggml's record, not what the data are."""

from __future__ import annotations

import ctypes

from parlay.llama.kernels import device_of
from parlay.llama.library import C

_WORDS = 19  # ggml's record of a backend: its device, and then its own data, come last


def data_of(backend: int) -> int | None:
    """None where its record does not look as it should."""
    words = list((ctypes.c_size_t * _WORDS).from_address(backend))
    device = device_of(backend)
    return words[words.index(device) + 1] if device in words[:-1] else None


def name_of(backend: int) -> bytes:
    """Such as CPU or CUDA0."""
    call = C.optional("ggml_backend_name", ctypes.c_char_p, ctypes.c_void_p)
    return b"" if call is None else bytes(call(backend))
