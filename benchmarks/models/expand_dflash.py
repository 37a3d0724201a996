"""A block drafter for a stand-in, out of the block drafter of the small model it was made from.

    python -m benchmarks.models.expand_dflash --drafter block.gguf --source SmolLM2-135M.gguf \
        --standin 27b.gguf --out 27b-block.gguf --type q4_0

A stand-in computes what its source computes, at the cost of a large shape: the source's numbers
lie among numbers that are always zero, its layers among layers that add nothing. Where they lie is
read from the two files. What is written drafts what the small drafter drafts, at the cost of a
large one:

  width    the stand-in's; numbers that are zero in its embeddings and states stay zero
  fc       picks the source's numbers out of the states, at layers with the same input as the
           source's
  norms    a mean over W numbers of which w are not zero is w/W of the mean over w: so is epsilon,
           and weights make up for it. The norms of heads have the same epsilon but not more
           numbers: what they read is made smaller in proportion; attn_v gives it back to values
  heads    key head j stays so; its query heads are the first of group j; further values are zero
  ffn      `up` of a further unit is zero

Weights that meet only zeros are random: timings are not taken on zeros. Layers have as many heads
and as large an ffn as the stand-in's, as published block drafters have those of their target: four
layers for a 27B are 1.9 B parameters; those have 1 to 2 B. --narrow keeps the small drafter's heads
and ffn, only as wide as they must be: 0.4 B, the least such a drafter can cost. Like `parlay
distill` it keeps fc in F16. Needs numpy and gguf, not llama.cpp.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGUFValueType, LlamaFileType
from gguf.constants import GGMLQuantizationType as Kind
from numpy.typing import NDArray

from benchmarks.models.expand import Tensor, write_tensors
from benchmarks.shared.arguments import parser_of

TYPES = {
    "q4_0": (Kind.Q4_0, LlamaFileType.MOSTLY_Q4_0),
    "q8_0": (Kind.Q8_0, LlamaFileType.MOSTLY_Q8_0),
    "f16": (Kind.F16, LlamaFileType.MOSTLY_F16),
    "f32": (Kind.F32, LlamaFileType.ALL_F32),
}
# A matrix's rows and columns, and whether its further rows must come out as zero.
MATRICES = {
    "fc": ("width", "read", True),
    "attn_q": ("queries", "width", False),
    "attn_k": ("keys", "width", False),
    "attn_v": ("keys", "width", True),
    "attn_output": ("width", "queries", True),
    "ffn_gate": ("inner", "width", False),
    "ffn_up": ("inner", "width", True),
    "ffn_down": ("width", "inner", True),
    "output": ("tokens", "width", False),
}
# Weights are multiplied by this power of sqrt(w/W).
POWERS = {
    "enc.output_norm": 2,
    "attn_norm": 2,
    "attn_v": -1,
    "ffn_norm": 1,
    "output_norm": 1,
    "attn_q_norm": 0,
    "attn_k_norm": 0,
}
HEAD_NORMS = ("attn_q_norm", "attn_k_norm")
N_COMPARED = 64  # rows of the embeddings
CLOSE = 0.05  # how far quantising again moves a row, at most
SPREAD = 0.02  # of random weights
POOL_BYTES = 64 << 20
STEPS = {Kind.Q4_0: 1 / 4.6, Kind.Q8_0: 1 / 74.0}  # a block's scale, for weights of spread 1

Matrix = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Places = NDArray[np.int64]


class File:
    """A GGUF file, its weights read when they are asked for."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            sys.exit(f"there is no file {path}")
        self.path = path
        self.reader = gguf.GGUFReader(path)
        self.tensors: dict[str, Any] = {t.name: t for t in self.reader.tensors}
        self.architecture = str(self.reader.get_field("general.architecture").contents())

    def value(self, key: str, default: Any = None) -> Any:
        """A key of its architecture."""
        field = self.reader.get_field(f"{self.architecture}.{key}")
        if field is None and default is None:
            sys.exit(f"{self.path} lacks {self.architecture}.{key}")
        return default if field is None else field.contents()

    def weights(self, name: str, rows: Any = slice(None)) -> Matrix:
        if name not in self.tensors:
            sys.exit(f"{self.path} lacks {name}")
        found = self.tensors[name]
        return np.asarray(gguf.quants.dequantize(found.data[rows], found.tensor_type), np.float32)


# -- how the stand-in was made ----------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """Where the source's numbers and layers lie in the stand-in."""

    n_source: int
    n_embd: int
    at: Places  # of a state's numbers
    layers: tuple[int, ...]  # where each of the source's layers is; last, where its output is

    @property
    def share(self) -> float:
        """How much smaller a root mean square is."""
        return float(np.sqrt(self.n_source / self.n_embd))


def layout(source: File, standin: File) -> Layout:
    """Found by comparing embeddings and norms."""
    n_vocab = source.tensors["token_embd.weight"].shape[1]
    rows = np.unique(np.linspace(0, n_vocab - 1, N_COMPARED).astype(int))
    small = source.weights("token_embd.weight", rows)
    large = standin.weights("token_embd.weight", rows)
    at = np.flatnonzero(large.any(0))
    if len(at) != small.shape[1] or np.linalg.norm(large[:, at] - small) > CLOSE * np.linalg.norm(
        small
    ):
        sys.exit(f"{standin.path} is not made from {source.path}: it embeds tokens otherwise")
    share = float(np.sqrt(small.shape[1] / large.shape[1]))
    return Layout(small.shape[1], large.shape[1], at, _layers(source, standin, at, share))


def _layers(source: File, standin: File, at: Places, share: float) -> tuple[int, ...]:
    """A layer of the source keeps its norm, but for the share; layers between have another."""
    n_layers = standin.value("block_count")
    found: list[int] = []
    wanted = [
        source.weights(f"blk.{i}.attn_norm.weight") for i in range(source.value("block_count"))
    ]
    for i in range(n_layers):
        norm = standin.weights(f"blk.{i}.attn_norm.weight")[at]
        if len(found) < len(wanted) and np.allclose(norm, wanted[len(found)] * share, rtol=1e-3):
            found.append(i)
    if len(found) < len(wanted):
        sys.exit(f"{standin.path} has no layer that is layer {len(found)} of {source.path}")
    return (*found, n_layers)


# -- the shape of the large drafter -----------------------------------------------------------


@dataclass(frozen=True)
class Axis:
    """One side of a matrix."""

    size: int
    at: Places  # where the small drafter's lie
    busy: Places  # where numbers may be other than zero: there at least


def _axis(size: int, at: Places, busy: Places | None = None) -> Axis:
    return Axis(size, at, at if busy is None else busy)


@dataclass(frozen=True)
class Shape:
    """Heads and ffn of a drafter's layers."""

    n_kv_heads: int
    group: int  # query heads to a key head
    n_ff: int

    @property
    def n_heads(self) -> int:
        return self.n_kv_heads * self.group


def shape_of(file: File) -> Shape:
    n_kv_heads = file.value("attention.head_count_kv")
    n_ff = file.value("feed_forward_length")
    return Shape(n_kv_heads, file.value("attention.head_count") // n_kv_heads, n_ff)


def larger(own: Shape, other: Shape) -> Shape:
    """One that holds both."""
    return Shape(
        max(own.n_kv_heads, other.n_kv_heads),
        max(own.group, other.group),
        max(own.n_ff, other.n_ff),
    )


def axes(drafter: File, found: Layout, shape: Shape) -> dict[str, Axis]:
    """By the names that MATRICES uses."""
    own, size = shape_of(drafter), drafter.value("attention.key_length")
    reads = len(drafter.value("target_layers"))
    head = np.arange(own.n_heads)
    slots = head // own.group * shape.group + head % own.group
    made = {
        "width": _axis(found.n_embd, found.at),
        "read": _axis(reads * found.n_embd, _each(np.arange(reads), found.n_embd, found.at)),
        # Further queries of a group read values that are not zero.
        "queries": _axis(
            shape.n_heads * size,
            _each(slots, size, np.arange(size)),
            np.arange(own.n_kv_heads * shape.group * size),
        ),
        "keys": _axis(shape.n_kv_heads * size, np.arange(own.n_kv_heads * size)),
        "inner": _axis(shape.n_ff, np.arange(own.n_ff)),
    }
    if "output.weight" in drafter.tensors:
        n_rows = int(drafter.tensors["output.weight"].shape[1])
        made["tokens"] = _axis(n_rows, np.arange(n_rows))
    return made


def _each(slots: Places, size: int, at: Places) -> Places:
    """`at`, in each of these slots of a size."""
    return np.asarray((slots[:, None] * size + at).ravel())


# -- weights ----------------------------------------------------------------------------------


class Filler:
    """Random weights of any type, as bytes."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._pools: dict[Kind, Bytes] = {}

    def blocks(self, n: int, kind: Kind) -> Bytes:
        """[n, bytes of a block], cut from a pool."""
        if kind not in self._pools:
            self._pools[kind] = self._pool(kind)
        pool = self._pools[kind]
        made = np.empty((n, pool.shape[1]), np.uint8)
        done = 0
        while done < n:
            start = int(self._rng.integers(0, len(pool) // 2))
            more = min(len(pool) - start, n - done)
            made[done : done + more] = pool[start : start + more]
            done += more
        return made

    def _pool(self, kind: Kind) -> Bytes:
        size = GGML_QUANT_SIZES[kind][1]
        n = POOL_BYTES // size
        if kind not in STEPS:
            values = self._rng.standard_normal(n, dtype=np.float32) * np.float32(SPREAD)
            return np.frombuffer(values.astype(f"<f{size}").tobytes(), np.uint8).reshape(n, size)
        pool = self._rng.integers(0, 256, (n, size), dtype=np.uint8)
        scales = self._rng.uniform(0.8, 1.2, n) * SPREAD * STEPS[kind]
        pool[:, :2] = scales.astype("<f2").view(np.uint8).reshape(n, 2)
        return pool


def matrix(live: Matrix, out: Axis, into: Axis, quiet: bool, kind: Kind, filler: Filler) -> Bytes:
    """`live` at its places; the rest random where that changes nothing, else zero."""
    per, size = GGML_QUANT_SIZES[kind]
    n_blocks = into.size // per
    made = filler.blocks(out.size * n_blocks, kind).reshape(out.size, n_blocks, size)
    busy = np.unique(into.busy // per)
    if quiet:
        made[:, busy] = 0
    dense = np.zeros((len(live), n_blocks, per), np.float32)
    dense[:, into.at // per, into.at % per] = live
    own = np.ascontiguousarray(gguf.quants.quantize(dense[:, busy].reshape(len(live), -1), kind))
    made[out.at[:, None], busy] = own.view(np.uint8).reshape(len(live), len(busy), size)
    return made.reshape(out.size, -1)


class Expansion:
    """A small drafter's tensors, made large one by one."""

    def __init__(self, drafter: File, found: Layout, shape: Shape, kind: Kind) -> None:
        self.drafter, self.found, self.kind = drafter, found, kind
        self.axes = axes(drafter, found, shape)
        self._filler = Filler()

    def tensors(self) -> Iterator[Tensor]:
        for name in self.drafter.tensors:
            part = _part(name)
            if part in MATRICES:
                yield self._matrix(name, part)
            elif part in POWERS:
                yield self._norm(name, part)
            elif name == "d2t":
                own = self.drafter.tensors[name].data
                yield Tensor(name, own.shape, Kind.I64, lambda own=own: own)  # type: ignore[misc]
            else:
                sys.exit(f"{self.drafter.path} holds {name}, which is not expanded here")

    def _matrix(self, name: str, part: str) -> Tensor:
        rows, columns, quiet = MATRICES[part]
        out, into = self.axes[rows], self.axes[columns]
        # As distilled: the columns of fc differ a thousandfold in size.
        kind = Kind.F16 if part == "fc" and self.kind != Kind.F32 else self.kind
        if into.size % GGML_QUANT_SIZES[kind][0]:
            sys.exit(f"{kind.name} cannot hold rows of {into.size} ({name}); use --type f16")
        return Tensor(
            name,
            (out.size, into.size),
            kind,
            lambda: matrix(self._scaled(name, part), out, into, quiet, kind, self._filler),
        )

    def _norm(self, name: str, part: str) -> Tensor:
        if part in HEAD_NORMS:
            own = self.drafter.weights(name)
            return Tensor(name, own.shape, Kind.F32, lambda: own)
        made = np.full(self.found.n_embd, self.found.share ** POWERS[part], np.float32)
        made[self.found.at] = self._scaled(name, part)
        return Tensor(name, made.shape, Kind.F32, lambda: made)

    def _scaled(self, name: str, part: str) -> Matrix:
        factor = self.found.share ** POWERS.get(part, 0)
        return (self.drafter.weights(name) * factor).astype(np.float32)


def _part(name: str) -> str:
    """blk.3.attn_q.weight -> attn_q"""
    stem = name.removesuffix(".weight")
    return stem.split(".", 2)[2] if stem.startswith("blk.") else stem


# -- the file ---------------------------------------------------------------------------------


def expand(
    drafter: Path,
    source: Path,
    standin: Path,
    out: Path,
    file_type: str = "q4_0",
    narrow: bool = False,
) -> tuple[int, int]:
    """Write `out`, whole or not at all; its parameters and bytes."""
    small, large = File(drafter), File(standin)
    if small.architecture != "dflash":
        sys.exit(f"{drafter} is a {small.architecture}, not a block drafter (dflash)")
    found = layout(File(source), large)
    if small.value("embedding_length") != found.n_source:
        sys.exit(f"{drafter} is not a drafter of {source}: they differ in width")
    own = shape_of(small)
    shape = own if narrow else larger(own, shape_of(large))
    kind, label = TYPES[file_type]
    tensors = list(Expansion(small, found, shape, kind).tensors())
    part = out.with_name(f".{out.name}.part")
    try:
        with closing(gguf.GGUFWriter(part, "dflash")) as writer:
            _add_keys(writer, small, _changed(small, found, shape, label))
            write_tensors(writer, tensors)
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)
    n_params = sum(int(np.prod(t.shape)) for t in tensors if t.name != "d2t")
    return n_params, sum(t.n_bytes for t in tensors)


def _changed(drafter: File, found: Layout, shape: Shape, label: LlamaFileType) -> dict[str, Any]:
    """Keys with other values than the small drafter's."""
    changed = {
        "embedding_length": found.n_embd,
        "feed_forward_length": shape.n_ff,
        "attention.head_count": shape.n_heads,
        "attention.head_count_kv": shape.n_kv_heads,
        "attention.layer_norm_rms_epsilon": drafter.value("attention.layer_norm_rms_epsilon")
        * found.n_source
        / found.n_embd,
        "target_layers": [found.layers[i] for i in drafter.value("target_layers")],
    }
    name = drafter.reader.get_field("general.name")
    return {
        "general.name": f"{name.contents() if name else drafter.path.stem}, {found.n_embd} wide",
        "general.file_type": int(label),
        **{f"dflash.{key}": value for key, value in changed.items()},
    }


def _add_keys(writer: Any, drafter: File, changed: Mapping[str, Any]) -> None:
    for key, field in drafter.reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == GGUFValueType.ARRAY else None
        if kind == GGUFValueType.ARRAY and not len(field.data):
            continue  # an empty list has no type to be written with
        value = changed[key] if key in changed else field.contents()
        writer.add_key_value(key, value, kind, sub_type=inner)


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--drafter", type=Path, required=True, help="a block drafter of the source")
    parser.add_argument("--source", type=Path, required=True, help="the small model")
    parser.add_argument("--standin", type=Path, required=True, help="the large one made from it")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--type", choices=TYPES, default="q4_0")
    parser.add_argument("--narrow", action="store_true", help="the small drafter's heads and ffn")
    args = parser.parse_args()
    started = time.monotonic()
    n_params, n_bytes = expand(
        args.drafter, args.source, args.standin, args.out, args.type, args.narrow
    )
    seconds = time.monotonic() - started
    print(f"{n_params / 1e9:.2f} B parameters, {n_bytes / 1e9:.2f} GB, {seconds:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
