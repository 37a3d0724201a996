"""A large stand-in out of a small model: its text, at the cost of a large shape.

    python -m benchmarks.models.expand --source SmolLM2-135M-Instruct.Q4_1.gguf --out 8b-q5_0.gguf \
        --preset 8b --type q5_0 --context 32768

The small model's weights sit in one corner of the large one. The rest is read and multiplied but
never reaches the result:

  width    numbers beyond the source's are zero after the embedding, and nothing writes to them
  norms    a mean over W numbers of which w are not zero is w/W of the mean over w: weights are made
           smaller by sqrt(w/W), epsilon by w/W
  heads    key head j stays so; its query heads are the first of group j; further values are zero
  ffn      `up` of a further unit reads zeros only, so the unit gives zero
  layers   further ones, spread between the real ones, add zero

Weights that meet only zeros are random, so that timings are not taken on zeros. One tensor is in
memory at a time. Where width / source width is a power of 4, logits are the source's to the bit;
else up to rounding. Needs numpy and gguf, not llama.cpp; llama architecture only.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

from benchmarks.shared.arguments import parser_of

Matrix = NDArray[np.float32]
Bytes = NDArray[np.uint8]

# Tensors, embedding and output, file.
TYPES = {
    "q4_0": (Kind.Q4_0, Kind.Q8_0, LlamaFileType.MOSTLY_Q4_0),
    "q4_1": (Kind.Q4_1, Kind.Q8_0, LlamaFileType.MOSTLY_Q4_1),
    "q5_0": (Kind.Q5_0, Kind.Q8_0, LlamaFileType.MOSTLY_Q5_0),
    "q8_0": (Kind.Q8_0, Kind.Q8_0, LlamaFileType.MOSTLY_Q8_0),
    "f16": (Kind.F16, Kind.F16, LlamaFileType.MOSTLY_F16),
}
# Weights per block, bytes per block, and the step that gives weights of spread 1.
BLOCKS = {
    Kind.Q4_0: (32, 18, 1 / 4.6),
    Kind.Q4_1: (32, 20, 1 / 4.6),
    Kind.Q5_0: (32, 22, 1 / 9.2),
    Kind.Q8_0: (32, 34, 1 / 74.0),
    Kind.F16: (1, 2, 0.0),
    Kind.F32: (1, 4, 0.0),
}
SPREAD = 0.02  # of random weights
POOL_BYTES = 64 << 20  # random blocks are cut from a pool of this size


@dataclass(frozen=True, slots=True)
class Shape:
    """How large a model is."""

    width: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    inner: int  # units of the feed-forward part

    @property
    def group(self) -> int:
        """Query heads of each key head."""
        return self.n_heads // self.n_kv_heads


PRESETS = {
    "1b": Shape(1536, 32, 24, 6, 5120),
    "8b": Shape(4096, 32, 64, 16, 14336),
    "14b": Shape(5120, 40, 80, 20, 17408),
    "27b": Shape(5376, 64, 64, 16, 22528),
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor to write, and how it is made."""

    name: str
    shape: tuple[int, ...]
    kind: Kind
    make: Callable[[], Any]

    @property
    def n_bytes(self) -> int:
        per, size = GGML_QUANT_SIZES[self.kind]
        return int(np.prod(self.shape)) // int(per) * int(size)


class Noise:
    """Random blocks of any type."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._pools: dict[Kind, Bytes] = {}

    def matrix(self, rows: int, columns: int, kind: Kind) -> Bytes:
        per, size, _ = BLOCKS[kind]
        pool = self._pool(kind)
        out = np.empty((rows * columns // per, size), np.uint8)
        done = 0
        while done < len(out):
            start = int(self._rng.integers(0, len(pool) // 2))
            n = min(len(pool) - start, len(out) - done)
            out[done : done + n] = pool[start : start + n]
            done += n
        return out.reshape(rows, columns // per * size)

    def _pool(self, kind: Kind) -> Bytes:
        if kind not in self._pools:
            self._pools[kind] = self._make_pool(kind)
        return self._pools[kind]

    def _make_pool(self, kind: Kind) -> Bytes:
        _, size, step = BLOCKS[kind]
        n = POOL_BYTES // size
        if not step:
            numbers = self._rng.standard_normal(n, dtype=np.float32) * SPREAD
            return numbers.astype("<f2").view(np.uint8).reshape(n, size)
        pool = self._rng.integers(0, 256, (n, size), dtype=np.uint8)
        scale = (self._rng.uniform(0.8, 1.2, n) * SPREAD * step).astype("<f2")
        pool[:, 0:2] = scale.view(np.uint8).reshape(-1, 2)
        if kind == Kind.Q4_1:  # has a minimum as well: centre the levels on zero
            pool[:, 2:4] = (scale * np.float16(-7.5)).view(np.uint8).reshape(-1, 2)
        return pool


class Source:
    """The small model's file."""

    def __init__(self, path: Path) -> None:
        self._reader = GGUFReader(path)
        self.fields = self._reader.fields
        self.tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        if self.key("general.architecture") != "llama":
            sys.exit(f"{path.name} is not of the llama architecture; use another source")
        self.shape = Shape(
            self.key("llama.embedding_length"),
            self.key("llama.block_count"),
            self.key("llama.attention.head_count"),
            self.key("llama.attention.head_count_kv"),
            self.key("llama.feed_forward_length"),
        )
        default = self.shape.width // self.shape.n_heads
        self.head_size: int = self.key("llama.attention.key_length", default)
        self.n_vocab = int(self.tensors["token_embd.weight"].shape[1])
        odd = [n for n in self.tensors if n.endswith(".bias") or "rope" in n or "exps" in n]
        if odd:
            sys.exit(f"{path.name} has tensors this does not know, such as {odd[0]}")

    def key(self, name: str, default: Any = None) -> Any:
        field = self._reader.get_field(name)
        return default if field is None else field.contents()

    def weights(self, name: str) -> Matrix:
        tensor = self.tensors[name]
        found: Matrix = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        return found


class Expansion:
    """A source in the corner of a larger shape."""

    def __init__(self, source: Source, shape: Shape, type_name: str, seed: int = 0) -> None:
        self.source, self.shape = source, shape
        self._kind, self._vocab_kind, self.file_type = TYPES[type_name]
        self._noise = Noise(seed)
        _check(source, shape)
        small = source.shape
        self._real = {i * shape.n_layers // small.n_layers: i for i in range(small.n_layers)}
        head = np.arange(small.n_heads)
        place = head // small.group * shape.group + head % small.group
        self._queries = (place[:, None] * source.head_size + np.arange(source.head_size)).ravel()

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor of the large model, in the order of the file."""
        width, small, kind = self.shape.width, self.source.shape, self._vocab_kind
        table = (self.source.n_vocab, width)
        embedding = "token_embd.weight"
        head = "output.weight" if "output.weight" in self.source.tensors else embedding
        yield self._matrix(embedding, table, embedding, width, quiet=True, kind=kind)
        yield self._norm("output_norm.weight", "output_norm.weight")
        yield self._matrix("output.weight", table, head, small.width, quiet=False, kind=kind)
        for layer in range(self.shape.n_layers):
            yield from self._layer(layer)

    def _layer(self, layer: int) -> Iterator[Tensor]:
        shape, small, head_size = self.shape, self.source.shape, self.source.head_size
        real = self._real.get(layer)
        width, inner = shape.width, shape.inner
        queries, keys = shape.n_heads * head_size, shape.n_kv_heads * head_size
        # Every query head whose values are not zero; in a further layer there is none.
        n_heard = 0 if real is None else small.n_kv_heads * shape.group * head_size
        n_units = 0 if real is None else small.inner
        at = {} if real is None else {"rows": self._queries}
        out = {} if real is None else {"columns": self._queries}

        def named(part: str) -> tuple[str, str]:
            return f"blk.{layer}.{part}.weight", "" if real is None else f"blk.{real}.{part}.weight"

        def matrix(
            part: str, size: tuple[int, int], n_alive: int, quiet: bool, **places: Any
        ) -> Tensor:
            name, source = named(part)
            return self._matrix(name, size, source, n_alive, quiet=quiet, places=places)

        yield self._norm(*named("attn_norm"))
        yield matrix("attn_q", (queries, width), small.width, False, **at)
        yield matrix("attn_k", (keys, width), small.width, False)
        yield matrix("attn_v", (keys, width), small.width, True)
        yield matrix("attn_output", (width, queries), n_heard, True, **out)
        yield self._norm(*named("ffn_norm"))
        yield matrix("ffn_gate", (inner, width), small.width, False)
        yield matrix("ffn_up", (inner, width), small.width, True)
        yield matrix("ffn_down", (width, inner), n_units, True)

    def _norm(self, name: str, source: str) -> Tensor:
        def make() -> Matrix:
            share = np.float32(np.sqrt(self.source.shape.width / self.shape.width))
            made = np.full(self.shape.width, share, np.float32)
            if source in self.source.tensors:
                made[: self.source.shape.width] = self.source.weights(source) * share
            return made

        return Tensor(name, (self.shape.width,), Kind.F32, make)

    def _matrix(
        self,
        name: str,
        size: tuple[int, int],
        source: str,
        n_alive: int,
        *,
        quiet: bool,
        kind: Kind | None = None,
        places: Mapping[str, Any] | None = None,
    ) -> Tensor:
        """Random blocks around the source's; `n_alive` leading columns may meet numbers that are
        not zero; `quiet`: rows that are not the source's must give zero, so they are zero there."""
        chosen = kind or self._kind

        def make() -> Bytes:
            per, n_bytes, _ = BLOCKS[chosen]
            out = self._noise.matrix(*size, chosen)
            if quiet:
                out[:, : -(-n_alive // per) * n_bytes] = 0
            if source:
                _place(out, self.source.weights(source), chosen, **(places or {}))
            return out

        return Tensor(name, size, chosen, make)


def _place(
    out: Bytes,
    live: Matrix,
    kind: Kind,
    rows: NDArray[np.int64] | None = None,
    columns: NDArray[np.int64] | None = None,
) -> None:
    """Write the source's weights; further columns in their blocks are zero."""
    per, n_bytes, _ = BLOCKS[kind]
    rows = np.arange(live.shape[0]) if rows is None else rows
    columns = np.arange(live.shape[1]) if columns is None else columns
    n_blocks = int(columns.max()) // per + 1
    dense = np.zeros((len(live), n_blocks * per), np.float32)
    dense[:, columns] = live
    written = quantize(dense, kind).view(np.uint8).reshape(len(live), -1)
    out[rows, : n_blocks * n_bytes] = written


def _check(source: Source, shape: Shape) -> None:
    small = source.shape
    if shape.n_heads % shape.n_kv_heads:
        sys.exit("the heads must be a multiple of the key heads")
    for what, new, old in (
        ("width", shape.width, small.width),
        ("layers", shape.n_layers, small.n_layers),
        ("key heads", shape.n_kv_heads, small.n_kv_heads),
        ("ffn", shape.inner, small.inner),
        ("heads per key head", shape.group, small.group),
    ):
        if new < old:
            sys.exit(f"{what}: {new} is less than the source's {old}")
    if shape.width % 32 or shape.inner % 32 or source.head_size % 32:
        sys.exit("width, ffn and the head size must be multiples of 32")


def write(expansion: Expansion, out: Path, n_context: int | None = None) -> int:
    """Write the large model; returns its parameters."""
    tensors = list(expansion.tensors())
    n_parameters = sum(int(np.prod(tensor.shape)) for tensor in tensors)
    writer = GGUFWriter(out, "llama")
    _metadata(writer, expansion, n_parameters, n_context)
    write_tensors(writer, tensors)
    return n_parameters


def write_tensors(writer: GGUFWriter, tensors: Sequence[Tensor]) -> None:
    """The file, its keys being given: one tensor at a time is all that is held in memory."""
    for t in tensors:
        writer.add_tensor_info(t.name, t.shape, np.dtype(np.float32), t.n_bytes, raw_dtype=t.kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in tensors:
        writer.write_tensor_data(tensor.make())
    writer.close()


def _metadata(
    writer: GGUFWriter, expansion: Expansion, n_parameters: int, n_context: int | None
) -> None:
    source, shape, size = expansion.source, expansion.shape, f"{n_parameters / 1e9:.1f}B"
    epsilon = "llama.attention.layer_norm_rms_epsilon"
    changed: dict[str, Any] = {
        "general.name": f"{source.key('general.name', 'source')} expanded to {size}",
        "general.size_label": size,
        "general.file_type": int(expansion.file_type),
        "llama.embedding_length": shape.width,
        "llama.block_count": shape.n_layers,
        "llama.attention.head_count": shape.n_heads,
        "llama.attention.head_count_kv": shape.n_kv_heads,
        "llama.attention.key_length": source.head_size,
        "llama.attention.value_length": source.head_size,
        "llama.rope.dimension_count": source.head_size,
        "llama.feed_forward_length": shape.inner,
        epsilon: source.key(epsilon) * source.shape.width / shape.width,
        **({"llama.context_length": n_context} if n_context else {}),
    }
    for name, field in source.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value = changed.pop(name) if name in changed else field.contents()
        kind = field.types[0]
        inner = field.types[-1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(name, value, kind, inner)
    for name, value in changed.items():
        kind = GGUFValueType.STRING if isinstance(value, str) else GGUFValueType.UINT32
        writer.add_key_value(name, value, kind)


def main() -> None:
    args = _arguments()
    began = time.monotonic()
    expansion = Expansion(Source(args.source), _shape(args), args.type, args.seed)
    n = write(expansion, args.out, args.context)
    tell(args.out, n, began)


def tell(out: Path, n_parameters: int, began: float) -> None:
    """What was written, and how long it took."""
    n_bytes, seconds = out.stat().st_size, time.monotonic() - began
    print(f"{out}: {n_parameters / 1e9:.2f} B parameters, {n_bytes / 1e9:.2f} GB, {seconds:.0f} s")


def _arguments() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--source", type=Path, required=True, help="the small GGUF")
    parser.add_argument("--out", type=Path, required=True, help="the GGUF to write")
    parser.add_argument("--preset", choices=PRESETS, help="a shape; the next options change it")
    for name in ("width", "layers", "heads", "kv-heads", "ffn"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--type", choices=TYPES, default="q5_0")
    parser.add_argument("--context", type=int, help="trained context to state; the source's")
    parser.add_argument("--seed", type=int, default=0, help="of the random filling")
    return parser.parse_args()


def _shape(args: argparse.Namespace) -> Shape:
    given = {
        "width": args.width,
        "n_layers": args.layers,
        "n_heads": args.heads,
        "n_kv_heads": args.kv_heads,
        "inner": args.ffn,
    }
    changed = {name: size for name, size in given.items() if size is not None}
    if args.preset:
        return replace(PRESETS[args.preset], **changed)
    if len(changed) < len(given):
        sys.exit("give --preset, or all of --width --layers --heads --kv-heads --ffn")
    return Shape(**changed)


if __name__ == "__main__":
    main()
