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
_N_HEADS, _N_KV_HEADS, _N_CTX = 4, 2, 512


def write_dflash(
    path: Path,
    *,
    layers: Sequence[int] = (0, 1),
    n_embd: int = 64,
    head_rows: Sequence[int] = (),
    markov_rank: int = 0,
    n_candidates: int = 0,
    vocab: Vocabulary = VOCABULARY,
) -> Path:
    """A block drafter without embeddings; it borrows the target's head too, or has one of its own
    for the tokens `head_rows`. With a Markov head it is a DSpark one, with candidates a DFlash2."""
    n_layers, n_ff, block_size = 2, 128, 6
    draw = tiny_models._Draw(3)
    head_size = n_embd // _N_HEADS
    tensors: dict[str, Array] = {
        "fc.weight": draw.matrix(n_embd, n_embd * len(layers)),
        "enc.output_norm.weight": draw.norm(n_embd),
        "output_norm.weight": draw.norm(n_embd),
    }
    for i in range(n_layers):
        tensors |= tiny_models._attention(draw, f"blk.{i}", n_embd, _N_HEADS, _N_KV_HEADS)
        tensors |= tiny_models._head_norms(draw, f"blk.{i}", head_size)
        tensors |= tiny_models._feed_forward(draw, f"blk.{i}", n_embd, n_ff)
    if head_rows:
        tensors["output.weight"] = draw.matrix(len(head_rows), n_embd, gain=3.0)
    if markov_rank:
        tensors["markov_w1.weight"] = draw.matrix(len(vocab.tokens), markov_rank)
        tensors["markov_w2.weight"] = draw.matrix(len(vocab.tokens), markov_rank)
    if n_candidates:
        tensors |= _selector(draw, len(vocab.tokens), n_embd, n_layers)
    writer = gguf.GGUFWriter(path, "dflash")
    if n_candidates:
        for key, value in {**_SELECTOR, "selector_top_k": n_candidates}.items():
            writer.add_uint32(f"dflash.{key}", value)
    _common(writer, n_layers, n_embd, n_ff)
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
    writer.add_uint32("dflash.block_size", block_size)
    writer.add_array("dflash.target_layers", list(layers))
    vocab.write(writer)
    writer.add_mask_token_id(MASK)
    if head_rows:
        writer.add_tensor("d2t", np.array(head_rows, np.int64))
    return _finish(writer, tensors, path)


_SELECTOR = {"conv_kernel_size": 3, "conv_group_size": 16, "selector_rank": 8}


def _selector(
    draw: tiny_models._Draw, n_vocab: int, n_embd: int, n_layers: int
) -> dict[str, Array]:
    kernel, rank = _SELECTOR["conv_kernel_size"], _SELECTOR["selector_rank"]
    projected = 2 * kernel * n_embd // _SELECTOR["conv_group_size"]
    tensors = {
        "selector_predecessor.weight": draw.matrix(n_vocab, rank),
        "selector_successor.weight": draw.matrix(n_vocab, rank),
        "selector_hidden.weight": draw.matrix(rank, n_embd),
    }
    for i in range(n_layers):
        for part in ("attn", "ffn"):
            base = draw.matrix(2 * kernel, n_embd).reshape(2, kernel, n_embd)
            tensors[f"blk.{i}.{part}_conv_base"] = base
            tensors[f"blk.{i}.{part}_conv_proj.weight"] = draw.matrix(projected, n_embd)
    return tensors


def write_eagle3(path: Path) -> Path:
    """A head of one layer that reads three of the target's; embeddings and head are borrowed."""
    n_embd, n_ff, layers = 64, 128, (0, 1, 1)
    draw = tiny_models._Draw(4)
    n_kv = n_embd // _N_HEADS * _N_KV_HEADS
    tensors: dict[str, Array] = {
        "fc.weight": draw.matrix(n_embd, 3 * n_embd),
        "output_norm.weight": draw.norm(n_embd),
        "blk.0.attn_norm.weight": draw.norm(n_embd),
        "blk.0.attn_norm_2.weight": draw.norm(n_embd),
        "blk.0.attn_q.weight": draw.matrix(n_embd, 2 * n_embd),
        "blk.0.attn_k.weight": draw.matrix(n_kv, 2 * n_embd),
        "blk.0.attn_v.weight": draw.matrix(n_kv, 2 * n_embd),
        "blk.0.attn_output.weight": draw.matrix(n_embd, n_embd),
    }
    tensors |= tiny_models._feed_forward(draw, "blk.0", n_embd, n_ff)
    writer = gguf.GGUFWriter(path, "eagle3")
    _common(writer, 1, n_embd, n_ff)
    writer.add_array("eagle3.target_layers", list(layers))
    writer.add_uint32("eagle3.target_hidden_size", n_embd)
    VOCABULARY.write(writer)
    return _finish(writer, tensors, path)


def write_nextn(path: Path, *, n_links: int = 1, only_head: bool = False) -> Path:
    """A target with a NextN layer of its own: GLM-4.5's architecture, the plainest that has one.
    `only_head`: without the other layers, as converters write a file for the NextN layer alone."""
    n_embd, n_layers, n_ff, n_experts = 64, 2, 64, 2
    draw = tiny_models._Draw(5)
    tensors = tiny_models._ends(draw, VOCABULARY, n_embd)
    for i in range(n_layers if only_head else 0, n_layers + n_links):
        at = f"blk.{i}"
        tensors |= tiny_models._attention(draw, at, n_embd, _N_HEADS, _N_KV_HEADS)
        tensors[f"{at}.post_attention_norm.weight"] = draw.norm(n_embd)
        if i < n_layers:  # dense; a NextN layer has experts
            tensors |= _without_norm(tiny_models._feed_forward(draw, at, n_embd, n_ff), at)
            continue
        tensors[f"{at}.ffn_gate_inp.weight"] = draw.matrix(n_experts, n_embd)
        tensors[f"{at}.exp_probs_b.bias"] = draw.vector(n_experts, 0.1)
        for name, shape in {
            "gate": (n_ff, n_embd),
            "up": (n_ff, n_embd),
            "down": (n_embd, n_ff),
        }.items():
            each = [draw.matrix(*shape) for _ in range(n_experts)]
            tensors[f"{at}.ffn_{name}_exps.weight"] = np.stack(each)
            tensors[f"{at}.ffn_{name}_shexp.weight"] = draw.matrix(*shape)
        tensors |= _link(draw, at, n_embd)
    writer = gguf.GGUFWriter(path, "glm4moe")
    _common(writer, n_layers + n_links, n_embd, n_ff)
    writer.add_uint32("glm4moe.nextn_predict_layers", n_links)
    writer.add_leading_dense_block_count(n_layers)
    writer.add_expert_count(n_experts)
    writer.add_expert_used_count(1)
    writer.add_expert_shared_count(1)
    writer.add_expert_feed_forward_length(n_ff)
    VOCABULARY.write(writer)
    return _finish(writer, tensors, path)


def write_chain(
    path: Path,
    *,
    architecture: str = "step35",
    n_links: int = 3,
    only_head: bool = False,
    seed: int = 6,
) -> Path:
    """A target with several NextN layers: Step 3.5's architecture with sliding layers, or the
    plainer Hy3's. Every layer is dense, as either allows."""
    n_embd, n_layers, n_ff, sliding_window = 64, 2, 64, 16
    draw = tiny_models._Draw(seed)
    tensors = tiny_models._ends(draw, VOCABULARY, n_embd)
    for i in range(n_layers if only_head else 0, n_layers + n_links):
        at = f"blk.{i}"
        tensors |= tiny_models._attention(draw, at, n_embd, _N_HEADS, _N_KV_HEADS)
        tensors |= tiny_models._head_norms(draw, at, n_embd // _N_HEADS)
        tensors |= tiny_models._feed_forward(draw, at, n_embd, n_ff)
        if i >= n_layers:
            tensors |= _link(draw, at, n_embd)
    writer = gguf.GGUFWriter(path, architecture)
    _common(writer, n_layers + n_links, n_embd, n_ff)
    writer.add_uint32(f"{architecture}.nextn_predict_layers", n_links)
    writer.add_expert_feed_forward_length(n_ff)
    if architecture == "step35":
        writer.add_sliding_window(sliding_window)
        writer.add_sliding_window_pattern([i % 2 == 0 for i in range(n_layers + n_links)])
    VOCABULARY.write(writer)
    return _finish(writer, tensors, path)


def write_assistant(
    path: Path, *, target_width: int = 64, n_embd: int = 32, head_size: int = 32
) -> Path:
    """A Gemma 4 assistant of two layers for `write_gemma4`: it has queries and no keys."""
    draw, n_ff, sliding_window = tiny_models._Draw(8), 64, 16
    slides, n_vocab = [True, False], len(VOCABULARY.tokens)
    tensors: dict[str, Array] = {
        "token_embd.weight": draw.matrix(n_vocab, n_embd, gain=3.0),
        "output_norm.weight": draw.norm(n_embd),
        "nextn.post_projection.weight": draw.matrix(target_width, n_embd),
        "nextn.pre_projection.weight": draw.matrix(n_embd, 2 * target_width),
        "rope_freqs.weight": np.ones(head_size // 2, np.float32),
    }
    for i, sliding in enumerate(slides):
        at, head = f"blk.{i}", head_size // 2 if sliding else head_size
        tensors |= tiny_models._feed_forward(draw, at, n_embd, n_ff)
        tensors[f"{at}.attn_norm.weight"] = draw.norm(n_embd)
        tensors[f"{at}.attn_q.weight"] = draw.matrix(_N_HEADS * head, n_embd)
        tensors[f"{at}.attn_output.weight"] = draw.matrix(n_embd, _N_HEADS * head)
        tensors[f"{at}.attn_q_norm.weight"] = draw.norm(head)
        tensors[f"{at}.post_attention_norm.weight"] = draw.norm(n_embd)
        tensors[f"{at}.post_ffw_norm.weight"] = draw.norm(n_embd)
        tensors[f"{at}.layer_output_scale.weight"] = np.ones(1, np.float32)
    writer = gguf.GGUFWriter(path, "gemma4-assistant")
    _common(writer, len(slides), n_embd, n_ff)
    writer.add_uint32("gemma4-assistant.nextn_predict_layers", len(slides))
    writer.add_embedding_length_out(target_width)
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
    writer.add_uint32("gemma4-assistant.attention.key_length_swa", head_size // 2)
    writer.add_uint32("gemma4-assistant.attention.value_length_swa", head_size // 2)
    writer.add_sliding_window(sliding_window)
    writer.add_sliding_window_pattern(slides)
    writer.add_uint32("gemma4-assistant.rope.dimension_count_swa", head_size // 2)
    VOCABULARY.write(writer)
    return _finish(writer, tensors, path)


def few_words(target: Path, n: int = 6, seed: int = 0, head: str = "output.weight") -> Path:
    """Let a target say only n tokens: half of them stand for the opposite of the other half, so
    that one of them always leads."""
    reader = gguf.GGUFReader(target, "r+")
    words = next(tensor for tensor in reader.tensors if tensor.name == head).data
    chosen = np.random.default_rng(seed).choice(np.arange(40, 120), n, replace=False)
    first, second = chosen[: n // 2], chosen[n // 2 :]
    rows = np.zeros_like(words)
    rows[first], rows[second] = words[first], -words[first]
    words[...] = rows
    reader.data.flush()
    return target


def _link(draw: tiny_models._Draw, at: str, n_embd: int) -> dict[str, Array]:
    """What makes a layer a NextN one: a state and a token become its input."""
    return {
        f"{at}.nextn.eh_proj.weight": draw.matrix(n_embd, 2 * n_embd),
        f"{at}.nextn.enorm.weight": draw.norm(n_embd),
        f"{at}.nextn.hnorm.weight": draw.norm(n_embd),
    }


def _without_norm(tensors: dict[str, Array], at: str) -> dict[str, Array]:
    return {name: each for name, each in tensors.items() if name != f"{at}.ffn_norm.weight"}


def _common(writer: gguf.GGUFWriter, n_layers: int, n_embd: int, n_ff: int) -> None:
    writer.add_block_count(n_layers)
    writer.add_context_length(_N_CTX)
    writer.add_embedding_length(n_embd)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_head_count(_N_HEADS)
    writer.add_head_count_kv(_N_KV_HEADS)
    writer.add_feed_forward_length(n_ff)
    writer.add_rope_dimension_count(n_embd // _N_HEADS)


def _finish(writer: gguf.GGUFWriter, tensors: dict[str, Array], path: Path) -> Path:
    for name, weights in tensors.items():
        writer.add_tensor(name, weights.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
