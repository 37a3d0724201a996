"""What llama.cpp says it allocates, for real or in its own dry run; read from its log.

Knows nothing of plans: it is what plans are checked against.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from parlay.llama import library
from parlay.llama.binding import LOAD_MODE_NONE
from parlay.llama.context import Context
from parlay.llama.library import C
from parlay.llama.model import Model
from parlay.llama.settings import CACHE_TYPES, ContextSettings, ModelSettings

_SIZE = re.compile(r"(KV|RS|LoRA|model|compute|output) buffer size (?:=|is) +([\d.]+) MiB")
_DRY_SIZE = re.compile(r"(?:kv_cache|recurrent): size = +([\d.]+) MiB")

MAPPED = ModelSettings(large_pages=False)


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@contextmanager
def llama_log() -> Iterator[list[str]]:
    handler, level = _Lines(), library.log.level
    library.log.setLevel(logging.DEBUG)
    library.log.propagate = False
    library.log.addHandler(handler)
    try:
        yield handler.lines
    finally:
        library.log.removeHandler(handler)
        library.log.setLevel(level)
        library.log.propagate = True


def allocated(
    path: Path, context: ContextSettings, settings: ModelSettings = MAPPED
) -> dict[str, float]:
    """MiB by kind, from a real load. Compute buffers are said with four digits on closing."""
    with llama_log() as lines, Model(path, settings) as model:
        Context(model, context).close()
    found: dict[str, float] = {}
    for line in lines:
        match = _SIZE.search(line)
        exact = "matches expectation" in line
        if match and (match[1] == "compute") == exact:
            found[match[1]] = found.get(match[1], 0.0) + float(match[2])
    return found


def simulated(path: Path, context: ContextSettings) -> dict[str, float]:
    """MiB by kind, from llama.cpp's own dry run: nothing is allocated."""
    library.start()
    params = C.llama_model_default_params()
    params.no_alloc, params.load_mode = True, LOAD_MODE_NONE
    with llama_log() as lines:
        model = C.llama_model_load_from_file(os.fsencode(path), params)
        assert model, lines[-3:]
        made = C.llama_init_from_model(model, _context_params(context))
        assert made, lines[-3:]
        C.llama_free(made)
        C.llama_model_free(model)
    cache = sum(float(m[1]) for m in map(_DRY_SIZE.search, lines) if m)
    sizes = [m for m in map(_SIZE.search, lines) if m and m[1] == "compute"]
    return {"cache": cache, "compute": float(sizes[-1][2])}


def _context_params(context: ContextSettings) -> object:
    params = C.llama_context_default_params()
    params.n_ctx = context.context_size * context.n_sequences
    params.n_seq_max = context.n_sequences
    params.n_batch, params.n_ubatch = context.n_batch, context.rows_at_once
    params.n_outputs_max = context.n_outputs
    params.flash_attn_type = 0 if context.flash_attention == "off" else 1
    types = (context.cache_type_k, context.cache_type_v)
    params.type_k, params.type_v = (CACHE_TYPES["f16" if t == "auto" else t] for t in types)
    params.kv_unified = False
    return params
