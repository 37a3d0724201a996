"""A copy of a GGUF in another file type, by llama.cpp's own quantiser.

Knows nothing of what the copy is for: a drafter, a test, a smaller download.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from parlay.errors import BadRequest
from parlay.llama.library import C, check, forget_errors, start

# llama.cpp's numbers for the file types people use.
FILE_TYPES = {
    "f32": 0,
    "f16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q8_0": 7,
    "q5_0": 8,
    "q5_1": 9,
    "q2_k": 10,
    "q3_k_m": 12,
    "q4_k_s": 14,
    "q4_k_m": 15,
    "q5_k_s": 16,
    "q5_k_m": 17,
    "q6_k": 18,
    "bf16": 32,
}


def requantise(source: Path, made: Path, file_type: str) -> Path:
    """Write `made`, whole or not at all."""
    if file_type not in FILE_TYPES:
        raise BadRequest(f"unknown file type {file_type!r}; use one of {', '.join(FILE_TYPES)}")
    start()
    params = C.llama_model_quantize_default_params()
    params.ftype = FILE_TYPES[file_type]
    params.allow_requantize = True
    part = made.with_name(f".{made.name}.{os.getpid()}.part")
    forget_errors()
    try:
        code = C.llama_model_quantize(os.fsencode(source), os.fsencode(part), ctypes.byref(params))
        check(code, f"llama_model_quantize to {file_type}")
        part.replace(made)
    finally:
        part.unlink(missing_ok=True)
    return made
