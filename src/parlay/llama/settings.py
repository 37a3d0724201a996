"""How models are loaded and contexts are made: the settings that matter on real machines.

Plain data; knows nothing of the C structures it will fill.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

from parlay.errors import BadRequest

FlashAttention = Literal["auto", "on", "off"]
SplitMode = Literal["layer", "row", "tensor", "none"]
RopeScaling = Literal["auto", "none", "linear", "yarn"]
ALL = -1  # layers, experts

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


# Shapes of passes whose recordings a GPU keeps, which are planned for (hacks/recorder.py).
MOST_RECORDINGS = 24
_MAX_SEQUENCES = 256  # llama.cpp's own limit
_MAX_CELLS = (1 << 31) - 1
MIN_BATCH = 16  # what the probes of rollback and exactness need
_MIN_UBATCH = 32  # the widest pass of the probe of exact shapes must not be cut


# Names of the tensors that hold a layer's experts; what llama.cpp's --n-cpu-moe matches.
_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
CPU = "CPU"


@dataclass(frozen=True, slots=True)
class Override:
    """Tensors whose names match go to this device's memory, whatever their layer says."""

    pattern: str
    device: str

    @classmethod
    def parse(cls, text: str) -> Override:
        """`PATTERN=DEVICE`, as llama.cpp's --override-tensor takes it."""
        pattern, equals, device = text.rpartition("=")
        if not equals or not pattern or not device:
            raise BadRequest(f"override {text!r} is not PATTERN=DEVICE; try 'ffn_.*_exps=CPU'")
        try:
            re.compile(pattern)
        except re.error as error:
            raise BadRequest(f"override {text!r} holds no regular expression: {error}") from None
        return cls(pattern, device)


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter and how strongly it counts."""

    path: Path
    scale: float = 1.0

    @classmethod
    def parse(cls, text: str) -> Adapter:
        """`FILE` or `FILE:SCALE`."""
        name, colon, scale = text.rpartition(":")
        try:
            return cls(Path(name), float(scale)) if colon and name else cls(Path(text))
        except ValueError:  # the colon belongs to the name
            return cls(Path(text))


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
    split_mode: SplitMode = "layer"  # how several GPUs share the model
    tensor_split: tuple[float, ...] = ()  # each GPU's share; empty: by what is free
    main_gpu: int = 0  # the one that is used where nothing is split
    n_cpu_moe: int = 0  # the first so many layers keep their experts in RAM; ALL: every one
    overrides: tuple[Override, ...] = ()
    adapters: tuple[Adapter, ...] = ()

    def __post_init__(self) -> None:
        if self.split_mode not in get_args(SplitMode):
            raise BadRequest(
                f"split mode {self.split_mode!r} is not one of {', '.join(get_args(SplitMode))}"
            )
        shares = self.tensor_split
        if shares and not (sum(shares) > 0 and all(0 <= share < 1e9 for share in shares)):
            given = ", ".join(f"{share:g}" for share in shares)
            raise BadRequest(f"a tensor split of {given}; give shares of 0 or more, not all 0")
        if self.main_gpu < 0:
            raise BadRequest(f"main GPU {self.main_gpu}; GPUs are counted from 0")
        if self.n_cpu_moe < ALL:
            raise BadRequest(f"experts of {self.n_cpu_moe} layers in RAM; give 0 or more, or -1")

    @property
    def all_overrides(self) -> tuple[Override, ...]:
        """What was named first, then experts; the first that matches a tensor holds."""
        if self.n_cpu_moe == ALL:
            return (*self.overrides, Override(_EXPERTS, CPU))
        layers = range(self.n_cpu_moe)
        return (*self.overrides, *(Override(rf"blk\.{i}{_EXPERTS}", CPU) for i in layers))

    def all_on_gpu(self, n_layers: int) -> bool:
        """Whether every layer of a model with so many, and its head, is to be on one."""
        layers = self.gpu_layers < 0 or self.gpu_layers > n_layers
        return layers and all(override.device != CPU for override in self.all_overrides)

    def for_drafter(self, gpu_layers: int) -> ModelSettings:
        """The same machine for another model: what names the target's tensors is not its."""
        return replace(self, gpu_layers=gpu_layers, n_cpu_moe=0, overrides=(), adapters=())


@dataclass(frozen=True, slots=True)
class RopeSettings:
    """How positions are stretched; None: as the model's file says."""

    scaling: RopeScaling = "auto"
    scale: float | None = None  # so many times the trained context
    freq_base: float | None = None
    yarn_orig_context: int | None = None
    yarn_ext_factor: float | None = None
    yarn_attn_factor: float | None = None
    yarn_beta_fast: float | None = None
    yarn_beta_slow: float | None = None

    def __post_init__(self) -> None:
        if self.scaling not in get_args(RopeScaling):
            known = ", ".join(get_args(RopeScaling))
            raise BadRequest(f"RoPE scaling {self.scaling!r} is not one of {known}")
        for name in ("scale", "freq_base", "yarn_orig_context"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1e12:
                raise BadRequest(f"rope {name} is {value:g}; give a number above 0")
        for name in ("ext_factor", "attn_factor", "beta_fast", "beta_slow"):
            value = getattr(self, f"yarn_{name}")
            if value is not None and not 0 <= value < 1e12:
                raise BadRequest(f"YaRN {name} is {value:g}; give 0 or more")


@dataclass(frozen=True, slots=True)
class ContextSettings:
    """One context: its cache, its threads and the largest pass."""

    context_size: int = 4096  # tokens of each sequence
    n_sequences: int = 1
    n_batch: int = 512  # most rows in one pass
    n_outputs: int = 64  # most rows whose logits are read
    threads: int = 0  # 0: physical cores
    flash_attention: FlashAttention = "auto"
    cache_type_k: str = "auto"  # see `cache_types`
    cache_type_v: str = "auto"
    # Whether passes over several tokens have to agree with single ones to the bit.
    same_bits: bool = True
    # Of recurrent and hybrid models: earlier states that a pass leaves behind for each sequence, so
    # that as many tokens can be taken back without a copy.
    n_snapshots: int = 0
    # One cache for all sequences: passes take any rows at once, but each row looks at every cell,
    # and neighbours change the rounding. False: each has cells of its own.
    unified: bool = False
    n_ubatch: int = 0  # rows llama.cpp computes at once, which its buffers are for; 0: the batch
    rope: RopeSettings = field(default_factory=RopeSettings)
    # RAM for what was read before: states at earlier positions, conversations without a slot.
    prompt_cache_bytes: int = 0

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
        if self.n_batch < max(MIN_BATCH, self.n_sequences):
            raise BadRequest(
                f"a batch of {self.n_batch} rows is too small; give at least"
                f" {max(MIN_BATCH, self.n_sequences)}"
            )
        if self.n_ubatch and not _MIN_UBATCH <= self.n_ubatch <= self.n_batch:
            raise BadRequest(
                f"a ubatch of {self.n_ubatch} rows in batches of {self.n_batch}; give"
                f" {_MIN_UBATCH} to {self.n_batch}, or 0 for the whole batch"
            )
        if not 0 <= self.n_snapshots < self.rows_at_once:  # llama.cpp takes them in one go
            raise BadRequest(
                f"{self.n_snapshots} snapshots of a state; give 0 to {self.rows_at_once - 1}"
            )
        if self.prompt_cache_bytes < 0:
            raise BadRequest(f"a prompt cache of {self.prompt_cache_bytes} bytes; give 0 or more")
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

    @property
    def rows_at_once(self) -> int:
        """The most rows llama.cpp computes together."""
        return self.n_ubatch or self.n_batch

    def cache_types(
        self, *, on_gpu: bool, shares_keys: bool, kernels: bool = False
    ) -> tuple[str, str]:
        """Types of K and V, with what auto means: f16; for K bf16 on a CPU where bits count and
        attention's kernels cannot be chosen.

        Equal types let ggml take another one for single tokens past 512 cells, and then no pass
        over several tokens equals single ones. f32 would not do: llama.cpp makes f16 of it in every
        pass (docs/explanation/exactness.md).
        """
        k, v = self.cache_type_k, self.cache_type_v
        auto_k = "bf16" if self.same_bits and not on_gpu and not kernels else "f16"
        types = (auto_k if k == "auto" else k), ("f16" if v == "auto" else v)
        if shares_keys and "auto" in (k, v):  # llama.cpp wants one type for both
            return (types[0], types[0]) if v == "auto" else (types[1], types[1])
        return types

    def with_passes(self, n: int) -> ContextSettings:
        """Room for so many passes in one call of llama.cpp; its buffers stay those of one."""
        if self.rows_at_once < _MIN_UBATCH:
            return self
        return replace(self, n_batch=n * self.n_batch, n_ubatch=self.rows_at_once)
