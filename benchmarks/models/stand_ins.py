"""Hybrids, mixtures and models with sliding layers, of any size with random weights: their cost is
real, their text is not.

  python -m benchmarks.models.stand_ins --kind hybrid --preset 27b --type q4_0 --out hybrid-27b.gguf
  python -m benchmarks.models.stand_ins --kind mixture --preset 30b --type q4_0 \
    --out mixture-30b.gguf
  python -m benchmarks.models.stand_ins --kind gemma --preset 12b --type q4_0 --out gemma-12b.gguf

A hybrid is a qwen35 (three layers with a recurrent state, then one with attention), a mixture a
qwen3moe; of a gemma4's layers five in six see only the last 1,024 tokens. The tokenizer is the
source's. Their greedy text soon repeats itself, so that free drafts hold. One tensor is in memory
at a time; a 27B at q4_0 is 14 GB: write it to /dev/shm. Needs numpy and gguf, not llama.cpp.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFReader, GGUFValueType, GGUFWriter
from numpy.typing import NDArray

from benchmarks.models.expand import TYPES, Noise, Tensor, tell, write_tensors
from benchmarks.shared.arguments import parser_of
from parlay.hub.resolving import resolve_model

_CONTEXT = 32768
_CONV = 4  # inputs that a recurrent layer's convolution sees


@dataclass(frozen=True, slots=True)
class Dense:
    """What every shape has."""

    width: int
    n_layers: int
    inner: int  # of one expert, in a mixture
    n_heads: int
    n_kv_heads: int
    head_size: int  # of the full layers


@dataclass(frozen=True, slots=True)
class Hybrid(Dense):
    """The shape of a qwen35."""

    n_key_heads: int  # of the recurrent state
    n_value_heads: int
    state_size: int

    architecture = "qwen35"


@dataclass(frozen=True, slots=True)
class Mixture(Dense):
    """The shape of a qwen3moe."""

    n_experts: int
    n_used: int

    architecture = "qwen3moe"


@dataclass(frozen=True, slots=True)
class Gemma(Dense):
    """The shape of a gemma4, whose full layers have heads of twice the size."""

    sliding: int = 1024  # tokens that all but every sixth layer see

    architecture = "gemma4"

    @property
    def slides(self) -> list[bool]:
        """By layer."""
        return [(i + 1) % 6 != 0 for i in range(self.n_layers)]


Shape = Hybrid | Mixture | Gemma
HYBRIDS = {
    "27b": Hybrid(5120, 64, 17408, 24, 4, 256, 16, 48, 128),
    "9b": Hybrid(4096, 32, 12288, 16, 4, 256, 16, 32, 128),
    "tiny": Hybrid(256, 8, 512, 4, 2, 64, 2, 4, 32),
}
MIXTURES = {
    "30b": Mixture(2048, 48, 768, 32, 4, 128, 128, 8),
    "tiny": Mixture(256, 4, 128, 4, 2, 64, 16, 4),
}
GEMMAS = {
    "12b": Gemma(3840, 48, 15360, 16, 8, 512),
    "tiny": Gemma(256, 6, 512, 4, 2, 64, sliding=64),
}
PRESETS: dict[str, Mapping[str, Shape]] = {
    "hybrid": HYBRIDS,
    "mixture": MIXTURES,
    "gemma": GEMMAS,
}


class StandIn:
    """The tensors of one stand-in."""

    def __init__(self, shape: Shape, n_vocab: int, type_name: str, seed: int) -> None:
        self.shape = shape
        self.kind, self.vocab_kind, self.file_type = TYPES[type_name]
        self._n_vocab = n_vocab
        self._noise = Noise(seed)
        self._rng = np.random.default_rng(seed)

    def tensors(self) -> Iterator[Tensor]:
        width = self.shape.width
        yield self._matrix("token_embd.weight", (self._n_vocab, width), self.vocab_kind)
        yield self._matrix("output.weight", (self._n_vocab, width), self.vocab_kind)
        yield self._ones("output_norm.weight", width)
        if isinstance(self.shape, Gemma):
            yield self._ones("rope_freqs.weight", self.shape.head_size // 2)
        for i in range(self.shape.n_layers):
            at = f"blk.{i}."
            yield self._ones(f"{at}attn_norm.weight", width)
            if isinstance(self.shape, Mixture):
                yield from self._attention(at, self.shape, queries=1)
                yield from self._experts(at, self.shape)
            elif isinstance(self.shape, Gemma):
                yield from self._gemma_layer(at, i, self.shape)
            else:
                yield from self._hybrid_layer(at, i, self.shape)

    def _hybrid_layer(self, at: str, i: int, shape: Hybrid) -> Iterator[Tensor]:
        yield self._ones(f"{at}post_attention_norm.weight", shape.width)
        if (i + 1) % 4 == 0:
            yield from self._attention(at, shape, queries=2)  # as many again for the gate
        else:
            yield from self._recurrent(at, shape)
        for name, rows, columns in _feed_forward(shape.width, shape.inner):
            yield self._matrix(f"{at}ffn_{name}.weight", (rows, columns), self.kind)

    def _gemma_layer(self, at: str, i: int, shape: Gemma) -> Iterator[Tensor]:
        small = replace(shape, head_size=shape.head_size // 2)
        yield from self._attention(at, small if shape.slides[i] else shape, queries=1)
        for name in ("post_attention_norm", "ffn_norm", "post_ffw_norm"):
            yield self._ones(f"{at}{name}.weight", shape.width)
        for name, rows, columns in _feed_forward(shape.width, shape.inner):
            yield self._matrix(f"{at}ffn_{name}.weight", (rows, columns), self.kind)

    def _attention(self, at: str, shape: Shape, queries: int) -> Iterator[Tensor]:
        q, kv = shape.n_heads * shape.head_size, shape.n_kv_heads * shape.head_size
        yield self._matrix(f"{at}attn_q.weight", (queries * q, shape.width), self.kind)
        yield self._matrix(f"{at}attn_k.weight", (kv, shape.width), self.kind)
        yield self._matrix(f"{at}attn_v.weight", (kv, shape.width), self.kind)
        yield self._matrix(f"{at}attn_output.weight", (shape.width, q), self.kind)
        yield self._ones(f"{at}attn_q_norm.weight", shape.head_size)
        yield self._ones(f"{at}attn_k_norm.weight", shape.head_size)

    def _recurrent(self, at: str, shape: Hybrid) -> Iterator[Tensor]:
        n, size, width = shape.n_value_heads, shape.state_size, shape.width
        conv = (2 * shape.n_key_heads + n) * size
        decay = -np.exp(np.linspace(-2, 1, n)).astype(np.float32)
        yield self._matrix(f"{at}attn_qkv.weight", (conv, width), self.kind)
        yield self._matrix(f"{at}attn_gate.weight", (n * size, width), self.kind)
        yield self._numbers(f"{at}ssm_conv1d.weight", (conv, _CONV))
        yield self._numbers(f"{at}ssm_dt.bias", (n,))
        yield Tensor(f"{at}ssm_a", (n,), Kind.F32, lambda: decay)
        yield self._matrix(f"{at}ssm_beta.weight", (n, width), self.kind)
        yield self._matrix(f"{at}ssm_alpha.weight", (n, width), self.kind)
        yield self._ones(f"{at}ssm_norm.weight", size)
        yield self._matrix(f"{at}ssm_out.weight", (width, n * size), self.kind)

    def _experts(self, at: str, shape: Mixture) -> Iterator[Tensor]:
        yield self._ones(f"{at}ffn_norm.weight", shape.width)
        yield self._numbers(f"{at}ffn_gate_inp.weight", (shape.n_experts, shape.width))
        for name, rows, columns in _feed_forward(shape.width, shape.inner):
            size = (shape.n_experts, rows, columns)
            yield self._matrix(f"{at}ffn_{name}_exps.weight", size, self.kind)

    def _matrix(self, name: str, size: tuple[int, ...], kind: Kind) -> Tensor:
        *outer, columns = size
        rows = int(np.prod(outer))

        def make() -> NDArray[np.uint8]:
            return self._noise.matrix(rows, columns, kind).reshape(*outer, -1)

        return Tensor(name, size, kind, make)

    def _numbers(self, name: str, size: tuple[int, ...]) -> Tensor:
        def make() -> NDArray[np.float32]:
            return (self._rng.standard_normal(size) * 0.02).astype(np.float32)

        return Tensor(name, size, Kind.F32, make)

    def _ones(self, name: str, n: int) -> Tensor:
        return Tensor(name, (n,), Kind.F32, lambda: np.ones(n, np.float32))

    def settings(self) -> Mapping[str, Any]:
        """The architecture's own keys."""
        shape = self.shape
        found: dict[str, Any] = {
            "context_length": _CONTEXT,
            "embedding_length": shape.width,
            "block_count": shape.n_layers,
            "attention.head_count": shape.n_heads,
            "attention.head_count_kv": shape.n_kv_heads,
            "attention.key_length": shape.head_size,
            "attention.value_length": shape.head_size,
            "attention.layer_norm_rms_epsilon": 1e-6,
        }
        if isinstance(shape, Mixture):
            return found | _of_mixture(shape)
        return found | (_of_gemma(shape) if isinstance(shape, Gemma) else _of_hybrid(shape))


def _feed_forward(width: int, inner: int) -> tuple[tuple[str, int, int], ...]:
    return ("gate", inner, width), ("up", inner, width), ("down", width, inner)


def _of_mixture(shape: Mixture) -> dict[str, Any]:
    return {
        "feed_forward_length": shape.inner * shape.n_used,
        "rope.freq_base": 1e6,
        "expert_count": shape.n_experts,
        "expert_used_count": shape.n_used,
        "expert_feed_forward_length": shape.inner,
    }


def _of_gemma(shape: Gemma) -> dict[str, Any]:
    return {
        "feed_forward_length": shape.inner,
        "rope.freq_base": 1e6,
        "rope.dimension_count": shape.head_size,
        "rope.dimension_count_swa": shape.head_size // 2,
        "attention.key_length_swa": shape.head_size // 2,
        "attention.value_length_swa": shape.head_size // 2,
        "attention.sliding_window": shape.sliding,
        "attention.sliding_window_pattern": shape.slides,
        "embedding_length_per_layer_input": 0,
    }


def _of_hybrid(shape: Hybrid) -> dict[str, Any]:
    rotated = min(64, shape.head_size // 4 * 4)
    third = rotated // 2 // 3
    return {
        "feed_forward_length": shape.inner,
        "rope.dimension_count": rotated,
        "rope.dimension_sections": [rotated // 2 - 2 * third, third, third, 0],
        "rope.freq_base": 1e7,
        "ssm.conv_kernel": _CONV,
        "ssm.inner_size": shape.state_size * shape.n_value_heads,
        "ssm.state_size": shape.state_size,
        "ssm.time_step_rank": shape.n_value_heads,
        "ssm.group_count": shape.n_key_heads,
        "full_attention_interval": 4,
    }


def write(shape: Shape, source: Path, out: Path, type_name: str, seed: int = 0) -> int:
    """Write a stand-in with the source's tokenizer; returns its parameters."""
    reader = GGUFReader(source)
    embedding = next(t for t in reader.tensors if t.name == "token_embd.weight")
    made = StandIn(shape, int(embedding.shape[1]), type_name, seed)
    writer = GGUFWriter(out, shape.architecture)
    writer.add_name(f"random {shape.architecture}")
    writer.add_file_type(int(made.file_type))
    for name, value in made.settings().items():
        _ADD[type(value)](writer, f"{shape.architecture}.{name}", value)
    for name, field in reader.fields.items():
        if name.startswith("tokenizer."):
            kind = field.types[0]
            inner = field.types[-1] if kind == GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), kind, inner)
    tensors = list(made.tensors())
    write_tensors(writer, tensors)
    return sum(int(np.prod(tensor.shape)) for tensor in tensors)


_ADD: dict[type, Callable[[GGUFWriter, str, Any], None]] = {
    int: lambda writer, name, value: writer.add_uint32(name, value),
    float: lambda writer, name, value: writer.add_float32(name, value),
    list: lambda writer, name, value: writer.add_array(name, value),
}


def main() -> None:
    args = _arguments()
    presets = PRESETS[args.kind]
    if args.preset not in presets:
        raise SystemExit(f"no {args.kind} {args.preset}; there are {', '.join(presets)}")
    began = time.monotonic()
    n = write(presets[args.preset], resolve_model(args.source), args.out, args.type, args.seed)
    tell(args.out, n, began)


def _arguments() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--kind", choices=PRESETS, required=True)
    parser.add_argument("--preset", default="tiny", help="27b, 9b, tiny; 30b, tiny; 12b, tiny")
    parser.add_argument("--type", choices=TYPES, default="q4_0")
    parser.add_argument("--source", default="default", help="whose tokenizer it gets")
    parser.add_argument("--out", type=Path, required=True, help="the GGUF to write")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
