"""A drafter to begin from: the shape and the weights of a llama's file, whatever its file type.

The counterpart of `export`. Refuses what the student would not compute as llama.cpp does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize
from numpy.typing import NDArray

from parlay.errors import BadRequest
from parlay.llama.facts import Facts, read_facts
from parlay.llama.header import Header, read_parts
from parlay.pairing.tokenizer import read_tokenizer
from parlay_train.student_shape import PRESETS, StudentShape

_HEAD = "output.weight"


@dataclass(frozen=True, slots=True)
class Start:
    """What a drafter's file holds."""

    path: Path
    shape: StudentShape
    weights: Mapping[str, NDArray[np.float32]]  # by their GGUF names

    def check_preset(self, name: str) -> None:
        """A preset may be named beside the file, but only its own."""
        if name not in PRESETS or PRESETS[name].sizes != self.shape.sizes:
            raise BadRequest(
                f"{self.path.name} is not of preset {name!r}; leave the preset out: the shape is"
                f" the file's, {self.shape.n_layers} layers of width {self.shape.n_embd}"
            )


def read_start(path: Path, target: Path, n_ctx: int) -> Start:
    """The drafter in `path`, to be trained for `target` on texts of up to n_ctx tokens."""
    headers, facts = read_parts(path), read_facts(path)
    if facts.architecture != "llama":
        _refuse(path, f"its architecture is {facts.architecture}, not llama")
    if read_tokenizer(path).tokens != read_tokenizer(target).tokens:
        _refuse(path, f"its vocabulary ({facts.n_vocab:,} tokens) is not {target.name}'s")
    dims = {tensor.name: tensor.dims for header in headers for tensor in header.tensors}
    shape = _shape(headers[0], facts, _HEAD not in dims, n_ctx)
    expected = dict(_tensors(shape))
    for name in sorted(expected.keys() | dims.keys()):
        if name not in expected:
            _refuse(path, f"it has {name}, which training does not know")
        if dims.get(name) != expected[name]:
            _refuse(path, f"{name} is {_shown(dims.get(name))}, not {_shown(expected[name])}")
    return Start(path, shape, dict(_weights(headers)))


def _refuse(path: Path, why: str) -> NoReturn:
    raise BadRequest(
        f"{path.name} cannot be started from: {why}; take a drafter that parlay train made for"
        " this target"
    )


def _shown(dims: Sequence[int] | None) -> str:
    return "x".join(map(str, dims)) if dims else "absent"


def _shape(header: Header, facts: Facts, tied: bool, n_ctx: int) -> StudentShape:
    values = header.values
    if values.get("llama.rope.scaling.type", "none") != "none":
        _refuse(header.path, "its positions are scaled")
    shape = StudentShape(
        n_embd=facts.n_embd,
        n_layers=facts.n_layers,
        n_heads=max(1, facts.n_heads),
        n_kv_heads=max(1, facts.n_kv_heads),
        n_ff=facts.n_ff,
        tied=tied,
        n_vocab=facts.n_vocab,
        n_ctx=max(n_ctx, facts.n_ctx_train),
        rope_base=_number(values.get("llama.rope.freq_base"), 10_000.0),
        eps=_number(values.get("llama.attention.layer_norm_rms_epsilon"), 1e-5),
    )
    turned = header.count("llama.rope.dimension_count", shape.head_size)
    if {facts.head_size_k, facts.head_size_v, turned} != {shape.head_size}:
        _refuse(header.path, f"its heads are not all of {shape.head_size} turned numbers")
    return shape


def _number(value: Any, default: float) -> float:
    return float(value) if isinstance(value, int | float) else default


def _tensors(shape: StudentShape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every tensor of such a llama and its dimensions, the inner one first as GGUF has it."""
    width, n_kv = shape.n_embd, shape.n_kv_heads * shape.head_size
    yield "token_embd.weight", (width, shape.n_vocab)
    yield "output_norm.weight", (width,)
    if not shape.tied:
        yield _HEAD, (width, shape.n_vocab)
    layer = {
        "attn_norm": (width,),
        "attn_q": (width, width),
        "attn_k": (width, n_kv),
        "attn_v": (width, n_kv),
        "attn_output": (width, width),
        "ffn_norm": (width,),
        "ffn_gate": (width, shape.n_ff),
        "ffn_up": (width, shape.n_ff),
        "ffn_down": (shape.n_ff, width),
    }
    for i in range(shape.n_layers):
        for name, dims in layer.items():
            yield f"blk.{i}.{name}.weight", dims


def _weights(headers: Sequence[Header]) -> Iterator[tuple[str, NDArray[np.float32]]]:
    for header in headers:
        for tensor in GGUFReader(header.path).tensors:
            try:
                yield tensor.name, dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
            except NotImplementedError:
                kind = tensor.tensor_type.name
                _refuse(header.path, f"{kind} cannot be read outside llama.cpp")
