"""Writes tiny drafters that read a target's hidden states: DFlash, EAGLE-3, and a NextN head.

Knows no runtime. Random weights never guess right, so some are built to copy what the target does.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np

from tests import tiny_models
from tests.tiny_models import VOCABULARY, Array, Vocabulary

MASK = 0


def write_dflash(
    path: Path,
    *,
    layers: Sequence[int] = (0, 1),
    n_embd: int = 64,
    n_layers: int = 2,
    n_heads: int = 4,
    n_kv_heads: int = 2,
    n_ff: int = 128,
    n_ctx: int = 512,
    block_size: int = 6,
    vocab: Vocabulary = VOCABULARY,
    seed: int = 3,
) -> Path:
    """A block drafter without embeddings or head: it borrows the target's."""
    draw = tiny_models._Draw(seed)
    head_size = n_embd // n_heads
    tensors: dict[str, Array] = {
        "fc.weight": draw.matrix(n_embd, n_embd * len(layers)),
        "enc.output_norm.weight": draw.norm(n_embd),
        "output_norm.weight": draw.norm(n_embd),
    }
    for i in range(n_layers):
        tensors |= tiny_models._attention(draw, f"blk.{i}", n_embd, n_heads, n_kv_heads)
        tensors |= tiny_models._head_norms(draw, f"blk.{i}", head_size)
        tensors |= tiny_models._feed_forward(draw, f"blk.{i}", n_embd, n_ff)
    writer = gguf.GGUFWriter(path, "dflash")
    _common(writer, n_layers, n_ctx, n_embd, n_heads, n_kv_heads, n_ff)
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
    writer.add_uint32("dflash.block_size", block_size)
    writer.add_array("dflash.target_layers", list(layers))
    vocab.write(writer)
    writer.add_mask_token_id(MASK)
    return _finish(writer, tensors, path)


def _common(
    writer: gguf.GGUFWriter,
    n_layers: int,
    n_ctx: int,
    n_embd: int,
    n_heads: int,
    n_kv_heads: int,
    n_ff: int,
) -> None:
    writer.add_block_count(n_layers)
    writer.add_context_length(n_ctx)
    writer.add_embedding_length(n_embd)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_head_count(n_heads)
    writer.add_head_count_kv(n_kv_heads)
    writer.add_feed_forward_length(n_ff)
    writer.add_rope_dimension_count(n_embd // n_heads)


def _finish(writer: gguf.GGUFWriter, tensors: dict[str, Array], path: Path) -> Path:
    for name, weights in tensors.items():
        writer.add_tensor(name, weights.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
