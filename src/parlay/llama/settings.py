"""How models are loaded and contexts are made: the settings that matter on real machines.

Plain data; knows nothing of the C structures it will fill.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal, get_args

from parlay.errors import BadRequest

FlashAttention = Literal["auto", "on", "off"]

# ggml type numbers of the cache types llama.cpp accepts.
CACHE_TYPES = {
    "f32": 0,
    "f16": 1,
    "bf16": 30,
    "q8_0": 8,
    "q4_0": 2,
    "q4_1": 3,
    "q5_0": 6,
    "q5_1": 7,
    "iq4_nl": 20,
}


_MAX_SEQUENCES = 256  # llama.cpp's own limit
_MAX_CELLS = (1 << 31) - 1
_MIN_BATCH = 16  # what the probes of rollback and exactness need


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Where the weights go."""

    gpu_layers: int = -1  # negative: all of them, if there is a GPU
    devices: tuple[str, ...] = ()  # empty: every device of this build
    mmap: bool = True
    mlock: bool = False
    # On a CPU, copy the weights into large pages where there is room, instead of mapping the file.
    large_pages: bool = True
    own_head: bool = False  # also load the layers that predict further tokens (NextN), if any


@dataclass(frozen=True, slots=True)
class ContextSettings:
    """One context: its cache, its threads and the largest pass."""

    context_size: int = 4096  # tokens of each sequence
    n_sequences: int = 1
    n_batch: int = 512  # most rows in one pass
    n_outputs: int = 64  # most rows whose logits are read
    threads: int = 0  # 0: physical cores
    flash_attention: FlashAttention = "auto"
    # auto: f16 on a GPU. On a CPU K is bf16 and V is f16: same size and speed, but equal types
    # let ggml switch to another attention kernel for single tokens past 256, and then no pass
    # over several tokens equals single ones any more (docs/exactness.md).
    cache_type_k: str = "auto"
    cache_type_v: str = "auto"
    # Of recurrent and hybrid models: earlier states that a pass leaves behind for each sequence, so
    # that as many tokens can be taken back without a copy.
    n_snapshots: int = 0
    mark_bytes: int = 1 << 28  # RAM for states of earlier positions, all sequences together

    def __post_init__(self) -> None:
        if self.context_size < 16:
            raise BadRequest(f"context size {self.context_size} is too small; give at least 16")
        if not 1 <= self.n_sequences <= _MAX_SEQUENCES:
            raise BadRequest(f"{self.n_sequences} sequences; give 1 to {_MAX_SEQUENCES}")
        if self.context_size * self.n_sequences > _MAX_CELLS:
            raise BadRequest(
                f"a context of {self.context_size} tokens for {self.n_sequences} sequence(s) is"
                f" more than llama.cpp can count; give at most {_MAX_CELLS // self.n_sequences}"
            )
        if self.n_batch < max(_MIN_BATCH, self.n_sequences):
            raise BadRequest(
                f"a batch of {self.n_batch} rows is too small; give at least"
                f" {max(_MIN_BATCH, self.n_sequences)}"
            )
        if not 0 <= self.n_snapshots < self.n_batch:
            raise BadRequest(
                f"{self.n_snapshots} snapshots of a state; give 0 to {self.n_batch - 1}"
            )
        if not 0 <= self.threads <= (os.cpu_count() or 1):
            raise BadRequest(
                f"{self.threads} threads on {os.cpu_count()} cores; llama.cpp's threads spin, so"
                " give as many as there are cores or fewer, or 0 for the physical ones"
            )
        if self.flash_attention not in get_args(FlashAttention):
            raise BadRequest(
                f"flash attention {self.flash_attention!r} is not one of auto, on, off"
            )
        for name in (self.cache_type_k, self.cache_type_v):
            if name != "auto" and name not in CACHE_TYPES:
                known = ", ".join(("auto", *CACHE_TYPES))
                raise BadRequest(f"unknown cache type {name!r}; use one of {known}")
