"""Shapes of public models and their drafters, without a file.

The numbers of each shape are its authors'; weights are counted as llama.cpp quantises them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parlay.llama.facts import Recurrent
from parlay.llama.settings import ContextSettings, ModelSettings
from parlay.planning.devices import GIB, MemoryPool, pretend
from parlay.planning.needs import Load
from parlay.planning.plan import Plan, make_plan
from parlay.planning.shape import Layer, Shape, Weight

_RAM = 32 * GIB
# Bits per weight: inside the layers, and of embeddings and head.
_BITS = {"Q4_K_M": (4.83, 6.56), "Q5_K_S": (5.5, 6.56), "Q8_0": (8.5, 8.5)}


@dataclass(frozen=True, slots=True)
class PublicShape:
    """What a model card says of a model."""

    name: str
    n_embd: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_size: int
    n_ff: int
    n_vocab: int
    tied: bool = False
    sliding_window: int = 0
    # One layer in so many attends to everything; the others keep a state, or slide.
    full_every: int = 1
    state: Recurrent | None = None
    n_inner: int = 0
    full_kv_heads: int = 0  # where the layers that attend to everything differ
    full_head_size: int = 0
    has_ends: bool = True  # False: the drafter uses the target's embeddings and head
    n_features: int = 0  # layers of the target it reads


@dataclass(frozen=True, slots=True)
class PublicPair:
    """A target and its drafter, quantised."""

    target: PublicShape
    drafter: PublicShape
    file_type: str = "Q4_K_M"
    drafter_type: str = "Q8_0"


PAIRS = {
    "7B": PublicPair(
        PublicShape("Qwen2.5 7B", 3584, 28, 28, 4, 128, 18944, 152064),
        PublicShape("Qwen2.5 0.5B", 896, 24, 14, 2, 64, 4864, 151936, tied=True),
    ),
    "14B": PublicPair(
        PublicShape("Qwen3 14B", 5120, 40, 40, 8, 128, 17408, 151936),
        PublicShape("Qwen3 0.6B", 1024, 28, 16, 8, 128, 3072, 151936, tied=True),
    ),
    "27B": PublicPair(
        PublicShape(
            "Qwen3.6 27B",
            5120,
            64,
            24,
            4,
            256,
            17408,
            248320,
            full_every=4,
            state=Recurrent(3 * (48 * 128 + 2 * 16 * 128), 128 * 48 * 128),
            n_inner=48 * 128,
        ),
        PublicShape(
            "DFlash, 5 layers", 5120, 5, 32, 8, 128, 17408, 248320, has_ends=False, n_features=5
        ),
        "Q5_K_S",
        "Q4_K_M",
    ),
    "31B": PublicPair(
        PublicShape(
            "Gemma 4 31B",
            5376,
            60,
            32,
            16,
            256,
            21504,
            262144,
            tied=True,
            sliding_window=1024,
            full_every=6,
            full_kv_heads=4,
            full_head_size=512,
        ),
        PublicShape("270M (Gemma 3 shape)", 640, 18, 4, 1, 256, 2048, 262144, tied=True),
    ),
    "70B": PublicPair(
        PublicShape("Llama 3.3 70B", 8192, 80, 64, 8, 128, 28672, 128256),
        PublicShape("Llama 3.2 1B", 2048, 16, 32, 8, 64, 8192, 128256, tied=True),
    ),
}


def shape_of(numbers: PublicShape, file_type: str) -> Shape:
    """A shape from a model card's numbers."""
    inside, outside = (bits / 8 for bits in _BITS[file_type])
    ends = int(numbers.n_embd * numbers.n_vocab * outside) if numbers.has_ends else 0
    full = numbers.full_head_size or numbers.head_size
    fused = numbers.n_features * numbers.n_embd**2  # joins what is read of the target
    return Shape(
        name=numbers.name,
        architecture="llama",
        file_type=file_type,
        n_embd=numbers.n_embd,
        n_vocab=numbers.n_vocab,
        n_ctx_train=32768,
        head_size_k=full,
        head_size_v=full,
        n_experts=0,
        n_experts_used=0,
        n_ff_expert=0,
        sliding_window=numbers.sliding_window,
        keeps_values=True,
        layers=tuple(_layer(numbers, i, inside) for i in range(numbers.n_layers)),
        input_bytes=ends,
        outputs=(Weight("output.weight", (0 if numbers.tied else ends) + int(fused * inside)),),
        tied_bytes=ends if numbers.tied else 0,
        n_inner=numbers.n_inner,
    )


def _layer(numbers: PublicShape, i: int, bytes_per_weight: float) -> Layer:
    is_full = (i + 1) % numbers.full_every == 0
    kv_heads, head = numbers.n_kv_heads, numbers.head_size
    if is_full:
        kv_heads = numbers.full_kv_heads or kv_heads
        head = numbers.full_head_size or head
    state = None if is_full else numbers.state
    if state is None:
        n_q, n_kv = numbers.n_heads * head, kv_heads * head
        mixing = numbers.n_embd * (2 * n_q + 2 * n_kv)
    else:  # in, gate and out, with the convolved part as wide as the state is told to be
        n_q = n_kv = 0
        mixing = numbers.n_embd * (state.n_conv // 3 + 2 * numbers.n_inner)
    weights = mixing + 3 * numbers.n_embd * numbers.n_ff
    return Layer(
        weights=(Weight(f"blk.{i}.weights", int(weights * bytes_per_weight)),),
        n_q=n_q,
        n_k=n_kv,
        n_v=n_kv,
        n_ff=numbers.n_ff,
        state=state,
        sliding=bool(numbers.sliding_window) and not is_full,
    )


def plan_pair(pair: PublicPair, gpu_gb: float, context_size: int = 4096) -> Plan:
    """A pair on an empty GPU of so many GB, beside 32 GB of RAM."""
    return _plan(_loads(pair, context_size), gpu_gb)


def _loads(pair: PublicPair, context_size: int) -> list[Load]:
    context = ContextSettings(context_size, n_outputs=32)
    target = shape_of(pair.target, pair.file_type)
    drafter = shape_of(pair.drafter, pair.drafter_type)
    features = pair.drafter.n_features
    return [
        Load("target", target, ModelSettings(), context, n_features=features),
        Load("drafter", drafter, ModelSettings(), ContextSettings(context_size, n_outputs=1)),
    ]


def _plan(loads: Sequence[Load], gpu_gb: float) -> Plan:
    pools = pretend(gpu_gb, MemoryPool("RAM", "ram", _RAM, _RAM))
    return make_plan(loads, pools, budget_gb=gpu_gb)
