"""A copy of a GGUF in another file type, rounded to the nearest: quantised in numpy, by its format.

Knows no engine, since not every one comes with llama.cpp's own quantiser, whose files are smaller
in error and not in size.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, LlamaFileType
from gguf.constants import GGMLQuantizationType as Kind

Array = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

_BLOCK = 256  # numbers of a K-quant's block
# What llama.cpp takes for rows that are no multiple of a K-quant's block.
_NARROW = {Kind.Q4_K: Kind.Q5_0, Kind.Q6_K: Kind.Q8_0}
# The head, which is the embeddings where there is no other, and in q4_k_m these as well.
_HEADS = ("output.weight", "token_embd.weight")
_FINER = "attn_v.weight"


def requantise(source: Path, made: Path, file_type: str) -> Path:
    """Every matrix in the type that file types such as "q4_0" or "q4_k_m" are named after."""
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(made, arch=architecture)
    for field in reader.fields.values():
        if not field.name.startswith(("GGUF.", "general.architecture", "general.file_type")):
            writer.add_key_value(field.name, field.contents(), field.types[0], field.types[-1])
    writer.add_file_type(int(LlamaFileType[f"MOSTLY_{file_type.upper()}"]))
    head = next(name for name in _HEADS if any(t.name == name for t in reader.tensors))
    for tensor in reader.tensors:
        weights = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        kind = _kind_of(tensor.name, weights, file_type, tensor.name == head)
        writer.add_tensor(tensor.name, quantised(weights, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return made


def _kind_of(name: str, weights: Array, file_type: str, is_head: bool) -> Any:
    if weights.ndim != 2 or not name.endswith(".weight"):
        return Kind.F32
    kind = Kind[file_type.upper().removesuffix("_M")]
    if file_type.startswith("q4") and (is_head or (kind is Kind.Q4_K and name.endswith(_FINER))):
        kind = Kind.Q6_K
    fits = weights.shape[-1] % GGML_QUANT_SIZES[kind][0] == 0
    return kind if fits else _NARROW[kind]


def quantised(weights: Array, kind: Any) -> npt.NDArray[np.generic]:
    """The bytes of a tensor, a row of it in each row."""
    by_hand = {Kind.Q4_K: _q4_k, Kind.Q6_K: _q6_k}.get(kind)
    if by_hand is None:
        made: npt.NDArray[np.generic] = gguf.quants.quantize(weights, kind)
        return made
    blocks = by_hand(weights.astype(np.float32).reshape(-1, _BLOCK))
    return blocks.reshape(len(weights), -1)


def _q4_k(x: Array) -> Bytes:
    """Eight runs of 32 numbers: four bits each, over a scale and below a minimum of six bits."""
    x = x.reshape(-1, 8, 32)
    low = np.maximum(-x.min(axis=2), 0)
    steps = (x.max(axis=2) + low) / 15
    d, scales = _share(steps, 63)
    d_low, lows = _share(low, 63)
    step, base = d * scales, d_low * lows
    q = np.round((x + base[..., None]) * _inverse(step)[..., None]).clip(0, 15).astype(np.uint8)
    s, m = scales.astype(np.uint8), lows.astype(np.uint8)
    packed = np.concatenate(
        [
            s[:, :4] | (s[:, 4:] >> 4) << 6,
            m[:, :4] | (m[:, 4:] >> 4) << 6,
            (s[:, 4:] & 15) | (m[:, 4:] & 15) << 4,
        ],
        axis=1,
    )
    pairs = q.reshape(-1, 4, 2, 32)
    nibbles = pairs[:, :, 0] | pairs[:, :, 1] << 4
    return np.concatenate([_half(d), _half(d_low), packed, nibbles.reshape(-1, 128)], axis=1)


def _q6_k(x: Array) -> Bytes:
    """Sixteen runs of 16 numbers: six bits each, with a scale of eight bits."""
    x = x.reshape(-1, 16, 16)
    d, scales = _share(np.abs(x).max(axis=2) / 31, 127)
    q = np.round(x * _inverse(d * scales)[..., None]).clip(-32, 31).astype(np.int16) + 32
    rows = q.astype(np.uint8).reshape(-1, 2, 4, 32)  # of each half, four rows
    low, high = rows & 15, rows >> 4
    nibbles = (low[:, :, :2] | low[:, :, 2:] << 4).reshape(-1, 128)
    shifts = np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    bits = np.bitwise_or.reduce(high << shifts, axis=2).reshape(-1, 64)
    return np.concatenate([nibbles, bits, scales.astype(np.int8).view(np.uint8), _half(d)], axis=1)


def _share(sizes: Array, most: int) -> tuple[Array, Array]:
    """One number for a block, as it is stored, and how many of it each run's size is."""
    d = (sizes.max(axis=1, keepdims=True) / most).astype(np.float16).astype(np.float32)
    return d, np.round(sizes * _inverse(d)).clip(0, most)


def _inverse(x: Array) -> Array:
    return np.divide(1, x, out=np.zeros_like(x), where=x != 0)


def _half(d: Array) -> Bytes:
    return d.astype(np.float16).view(np.uint8)
