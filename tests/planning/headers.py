"""Model files that are all header: any shape, no weights behind them, for llama.cpp's dry run.

Knows tensor names of a few architectures; the files are sparse and take no room.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from tests.tiny_models import add_setting

Setting = int | float | Sequence[int]
# The numbers of a small dense model.
SMALL: dict[str, Any] = dict.fromkeys(("n_embd", "n_ff", "n_vocab"), 64) | {
    "n_layers": 3,
    "n_heads": 4,
    "n_kv_heads": 4,
    "head_size": 16,
}
Dims = tuple[int, ...]  # as ggml counts them: the row's length first


def write_header(
    path: Path,
    architecture: str,
    settings: Mapping[str, Setting],
    tensors: Mapping[str, Dims],
    *,
    n_vocab: int,
    kind: str = "Q8_0",
) -> Path:
    """Matrices are of type `kind`, vectors F32."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in settings.items():
        add_setting(writer, f"{architecture}.{key}", value)
    writer.add_tokenizer_model("no_vocab")
    writer.add_vocab_size(n_vocab)
    n_bytes = 0
    for name, dims in tensors.items():
        n_bytes += _add_tensor(writer, name, dims, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + n_bytes + 64)
    return path


def _add_tensor(writer: gguf.GGUFWriter, name: str, dims: Dims, kind: str) -> int:
    matrix = len(dims) > 1 and "conv1d" not in name
    of = GGMLQuantizationType[kind if matrix else "F32"]
    block, block_bytes = GGML_QUANT_SIZES[of]
    n_elements = 1
    for n in dims:
        n_elements *= n
    n_bytes = n_elements // block * block_bytes
    shape = list(reversed(dims))
    shape[-1] = shape[-1] // block * block_bytes if matrix and of.name != "F32" else shape[-1]
    dtype = np.uint8 if matrix else np.float32
    writer.add_tensor_info(name, shape, np.dtype(dtype), n_bytes, raw_dtype=of)
    return int(-(-n_bytes // 32) * 32)


# -- architectures ----------------------------------------------------------------------------


def write_dense(
    path: Path,
    architecture: str,
    *,
    n_embd: int,
    n_layers: int,
    n_heads: int,
    n_kv_heads: int,
    head_size: int,
    n_ff: int,
    n_vocab: int,
    kind: str = "Q8_0",
    changes: Mapping[str, Setting] | None = None,
) -> Path:
    """A llama, or a Qwen 3 with its norms inside attention."""
    tensors = _ends(n_embd, n_vocab)
    for i in range(n_layers):
        tensors |= _attention(i, n_embd, n_heads * head_size, n_kv_heads * head_size)
        if architecture != "llama":
            tensors |= _head_norms(i, head_size)
        tensors |= _feed_forward(i, "ffn_norm", n_embd, n_ff)
    settings = _settings(n_embd, n_layers, n_heads, n_kv_heads, head_size, n_ff)
    settings |= changes or {}
    return write_header(path, architecture, settings, tensors, n_vocab=n_vocab, kind=kind)


def write_qwen35(path: Path, *, n_layers: int = 64, kind: str = "Q8_0") -> Path:
    """The hybrid of Qwen 3.5 and 3.6 at 27B: three layers with a state, one with attention."""
    n_embd, n_heads, n_kv, head, n_ff, n_vocab = 5120, 24, 4, 256, 17408, 248320
    n_state, n_groups, n_values = 128, 16, 48
    n_inner, n_conv = n_state * n_values, n_state * (n_values + 2 * n_groups)
    tensors = _ends(n_embd, n_vocab)
    for i in range(n_layers):
        at = f"blk.{i}"
        if (i + 1) % 4 == 0:
            tensors |= _attention(i, n_embd, n_heads * head, n_kv * head)
            tensors |= _head_norms(i, head)
            tensors[f"{at}.attn_q.weight"] = (n_embd, 2 * n_heads * head)  # queries and a gate
        else:
            tensors |= {
                f"{at}.attn_norm.weight": (n_embd,),
                f"{at}.attn_qkv.weight": (n_embd, n_conv),
                f"{at}.attn_gate.weight": (n_embd, n_inner),
                f"{at}.ssm_conv1d.weight": (4, n_conv),
                f"{at}.ssm_dt.bias": (n_values,),
                f"{at}.ssm_a": (n_values,),
                f"{at}.ssm_beta.weight": (n_embd, n_values),
                f"{at}.ssm_alpha.weight": (n_embd, n_values),
                f"{at}.ssm_norm.weight": (n_state,),
                f"{at}.ssm_out.weight": (n_inner, n_embd),
            }
        tensors |= _feed_forward(i, "post_attention_norm", n_embd, n_ff)
    settings = _settings(n_embd, n_layers, n_heads, n_kv, head, n_ff) | {
        "rope.dimension_count": 64,
        "rope.dimension_sections": [11, 11, 10, 0],
        "ssm.conv_kernel": 4,
        "ssm.inner_size": n_inner,
        "ssm.state_size": n_state,
        "ssm.time_step_rank": n_values,
        "ssm.group_count": n_groups,
        "full_attention_interval": 4,
    }
    return write_header(path, "qwen35", settings, tensors, n_vocab=n_vocab, kind=kind)


def _settings(
    n_embd: int, n_layers: int, n_heads: int, n_kv_heads: int, head_size: int, n_ff: int
) -> dict[str, Setting]:
    return {
        "block_count": n_layers,
        "context_length": 32768,
        "embedding_length": n_embd,
        "feed_forward_length": n_ff,
        "attention.head_count": n_heads,
        "attention.head_count_kv": n_kv_heads,
        "attention.key_length": head_size,
        "attention.value_length": head_size,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.dimension_count": head_size,
    }


def _ends(n_embd: int, n_vocab: int) -> dict[str, Dims]:
    return {
        "token_embd.weight": (n_embd, n_vocab),
        "output_norm.weight": (n_embd,),
        "output.weight": (n_embd, n_vocab),
    }


def _attention(i: int, n_embd: int, n_q: int, n_kv: int) -> dict[str, Dims]:
    return {
        f"blk.{i}.attn_norm.weight": (n_embd,),
        f"blk.{i}.attn_q.weight": (n_embd, n_q),
        f"blk.{i}.attn_k.weight": (n_embd, n_kv),
        f"blk.{i}.attn_v.weight": (n_embd, n_kv),
        f"blk.{i}.attn_output.weight": (n_q, n_embd),
    }


def _head_norms(i: int, head_size: int) -> dict[str, Dims]:
    return {f"blk.{i}.attn_{name}_norm.weight": (head_size,) for name in ("q", "k")}


def _feed_forward(i: int, norm: str, n_embd: int, n_ff: int) -> dict[str, Dims]:
    tensors: dict[str, Dims] = {f"blk.{i}.{norm}.weight": (n_embd,)}
    tensors |= {f"blk.{i}.ffn_{name}.weight": (n_embd, n_ff) for name in ("gate", "up")}
    return tensors | {f"blk.{i}.ffn_down.weight": (n_ff, n_embd)}


def write_mla(path: Path, *, n_layers: int = 3) -> Path:
    """A DeepSeek 2 whose layers are all dense: one compressed row per token is all it keeps."""
    n_embd, n_heads, n_ff, n_vocab = 2048, 16, 4096, 4096
    q_rank, kv_rank, rope, nope, v_head = 512, 512, 64, 128, 128
    tensors = _ends(n_embd, n_vocab)
    for i in range(n_layers):
        at = f"blk.{i}"
        tensors |= {
            f"{at}.attn_norm.weight": (n_embd,),
            f"{at}.attn_q_a.weight": (n_embd, q_rank),
            f"{at}.attn_q_a_norm.weight": (q_rank,),
            f"{at}.attn_q_b.weight": (q_rank, n_heads * (nope + rope)),
            f"{at}.attn_kv_a_mqa.weight": (n_embd, kv_rank + rope),
            f"{at}.attn_kv_a_norm.weight": (kv_rank,),
            f"{at}.attn_k_b.weight": (nope, kv_rank, n_heads),
            f"{at}.attn_v_b.weight": (kv_rank, v_head, n_heads),
            f"{at}.attn_output.weight": (n_heads * v_head, n_embd),
        }
        tensors |= _feed_forward(i, "ffn_norm", n_embd, n_ff)
    settings = _settings(n_embd, n_layers, n_heads, 1, kv_rank + rope, n_ff) | {
        "attention.value_length": kv_rank,
        "attention.q_lora_rank": q_rank,
        "attention.kv_lora_rank": kv_rank,
        "attention.key_length_mla": nope + rope,
        "attention.value_length_mla": v_head,
        "rope.dimension_count": rope,
        "leading_dense_block_count": n_layers,
        "expert_feed_forward_length": 1024,
        "expert_shared_count": 1,
    }
    return write_header(path, "deepseek2", settings, tensors, n_vocab=n_vocab)


def write_experts(path: Path, *, n_layers: int = 4) -> Path:
    """A Qwen 3 mixture: 8 of 128 experts a token."""
    n_embd, n_heads, n_kv, head, n_ff, n_vocab = 2048, 32, 4, 128, 768, 32000
    n_experts = 128
    tensors = _ends(n_embd, n_vocab)
    for i in range(n_layers):
        tensors |= _attention(i, n_embd, n_heads * head, n_kv * head)
        tensors |= _head_norms(i, head)
        tensors |= {
            f"blk.{i}.ffn_norm.weight": (n_embd,),
            f"blk.{i}.ffn_gate_inp.weight": (n_embd, n_experts),
            f"blk.{i}.ffn_gate_exps.weight": (n_embd, n_ff, n_experts),
            f"blk.{i}.ffn_up_exps.weight": (n_embd, n_ff, n_experts),
            f"blk.{i}.ffn_down_exps.weight": (n_ff, n_embd, n_experts),
        }
    settings = _settings(n_embd, n_layers, n_heads, n_kv, head, 6144) | {
        "expert_count": n_experts,
        "expert_used_count": 8,
        "expert_feed_forward_length": n_ff,
    }
    return write_header(path, "qwen3moe", settings, tensors, n_vocab=n_vocab)
