"""Writes tiny random GGUF models, deterministic by seed, and makes drafters out of them.

Knows no runtime: the weights mean nothing, they only load, decode and disagree a little.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, LlamaFileType, TokenType

Array = npt.NDArray[np.float32]
Setting = int | float | Sequence[int] | Sequence[bool]

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# "Ġ" is how byte-level BPE writes a space.
MERGES = ("h e", "Ġ t", "Ġt he", "i n", "l l", "e r", "o n", "Ġ a", "r e", "a n", "an d", "Ġ s")


@dataclass(frozen=True)
class Vocabulary:
    """Special tokens, the 256 bytes, and one token for each merge, in this order."""

    merges: tuple[str, ...] = MERGES

    @property
    def tokens(self) -> list[str]:
        return [*SPECIAL, *_byte_letters(), *(merge.replace(" ", "") for merge in self.merges)]

    @property
    def types(self) -> list[int]:
        n_normal = len(self.tokens) - len(SPECIAL)
        return [int(TokenType.CONTROL)] * len(SPECIAL) + [int(TokenType.NORMAL)] * n_normal

    def write(self, writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("smollm")
        writer.add_token_list(self.tokens)
        writer.add_token_types(self.types)
        writer.add_token_merges(list(self.merges))
        writer.add_bos_token_id(SPECIAL.index("<|im_start|>"))
        writer.add_eos_token_id(SPECIAL.index("<|im_end|>"))
        writer.add_add_bos_token(False)
        writer.add_chat_template(CHATML)


VOCABULARY = Vocabulary()
OTHER_SIZE = Vocabulary((*MERGES, "o u", "Ġ w", "i s"))
OTHER_TEXTS = Vocabulary((*MERGES[:-3], "o u", "Ġ w", "i s"))


@dataclass(frozen=True)
class GapVocabulary(Vocabulary):
    """With marks around a gap: any tokens will do."""

    marks: tuple[tuple[str, int], ...] = (
        ("fim_pre", 40), ("fim_suf", 41), ("fim_mid", 42), ("fim_sep", 43),
    )  # fmt: skip

    def write(self, writer: gguf.GGUFWriter) -> None:
        super().write(writer)
        for name, token in self.marks:
            writer.add_uint32(f"tokenizer.ggml.{name}_token_id", token)


GAP_VOCABULARY = GapVocabulary()


def _byte_letters() -> list[str]:
    """The printable letter that stands for each byte in byte-level BPE."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]


# -- architectures ----------------------------------------------------------------------------


def write_llama(
    path: Path,
    *,
    vocab: Vocabulary = VOCABULARY,
    n_embd: int = 64,
    n_layers: int = 2,
    n_heads: int = 4,
    n_kv_heads: int = 2,
    n_ff: int = 128,
    seed: int = 0,
    ftype: str = "f32",
    max_tensors: int = 0,
) -> Path:
    """A llama. K-quants need a width of 256.

    With `max_tensors` to a file the model is split, and the first file is returned.
    """
    draw = _Draw(seed)
    tensors = _ends(draw, vocab, n_embd)
    for i in range(n_layers):
        tensors |= _attention(draw, f"blk.{i}", n_embd, n_heads, n_kv_heads)
        tensors |= _feed_forward(draw, f"blk.{i}", n_embd, n_ff)
    settings: dict[str, Setting] = {
        "attention.head_count": n_heads,
        "attention.head_count_kv": n_kv_heads,
        "feed_forward_length": n_ff,
        "rope.dimension_count": n_embd // n_heads,
    }
    shape = _Shape("llama", n_embd, n_layers)
    return _write(path, shape, settings, tensors, ftype, vocab, max_tensors)


def write_gemma3(path: Path, *, seed: int = 0, ftype: str = "f32") -> Path:
    """Every other layer sees only the last `sliding_window` tokens."""
    n_embd, n_layers, n_heads, n_kv_heads, n_ff, sliding_window = 64, 2, 4, 2, 128, 16
    draw = _Draw(seed)
    head_size = n_embd // n_heads
    tensors = _ends(draw, VOCABULARY, n_embd)
    tensors["token_embd.weight"] /= np.sqrt(n_embd)  # gemma scales it up again
    for i in range(n_layers):
        tensors |= _attention(draw, f"blk.{i}", n_embd, n_heads, n_kv_heads)
        tensors |= _head_norms(draw, f"blk.{i}", head_size)
        tensors |= _feed_forward(draw, f"blk.{i}", n_embd, n_ff)
        tensors[f"blk.{i}.post_attention_norm.weight"] = draw.norm(n_embd)
        tensors[f"blk.{i}.post_ffw_norm.weight"] = draw.norm(n_embd)
    settings: dict[str, Setting] = {
        "attention.head_count": n_heads,
        "attention.head_count_kv": n_kv_heads,
        "attention.key_length": head_size,
        "attention.value_length": head_size,
        "attention.sliding_window": sliding_window,
        "attention.sliding_window_pattern": 2,
        "feed_forward_length": n_ff,
    }
    shape = _Shape("gemma3", n_embd, n_layers)
    return _write(path, shape, settings, tensors, ftype)


def write_mamba(path: Path, *, seed: int = 0, ftype: str = "f32") -> Path:
    """A recurrent model: it keeps a state, not keys and values."""
    n_embd, n_layers, n_state, n_conv = 64, 2, 16, 4
    draw = _Draw(seed)
    n_inner, n_rank = 2 * n_embd, n_embd // 16
    tensors = _ends(draw, VOCABULARY, n_embd)
    for i in range(n_layers):
        tensors |= _mamba(draw, f"blk.{i}", n_embd, n_inner, n_rank, n_state, n_conv)
    settings: dict[str, Setting] = {
        "attention.head_count": 0,
        "feed_forward_length": 0,
        "ssm.conv_kernel": n_conv,
        "ssm.inner_size": n_inner,
        "ssm.state_size": n_state,
        "ssm.time_step_rank": n_rank,
    }
    shape = _Shape("mamba", n_embd, n_layers)
    return _write(path, shape, settings, tensors, ftype)


def write_lfm2(path: Path, *, seed: int = 0, ftype: str = "f32") -> Path:
    """A hybrid: convolution layers with a state, and attention in every other layer."""
    n_embd, n_layers, n_heads, n_kv_heads, n_ff, n_conv = 64, 2, 4, 2, 128, 3
    draw = _Draw(seed)
    kv_heads = [n_kv_heads if i % 2 else 0 for i in range(n_layers)]
    tensors = _ends(draw, VOCABULARY, n_embd)
    tensors["token_embd_norm.weight"] = tensors.pop("output_norm.weight")
    for i in range(n_layers):
        if kv_heads[i]:
            tensors |= _attention(draw, f"blk.{i}", n_embd, n_heads, n_kv_heads)
            tensors |= _head_norms(draw, f"blk.{i}", n_embd // n_heads)
        else:
            tensors |= _short_convolution(draw, f"blk.{i}", n_embd, n_conv)
        tensors |= _feed_forward(draw, f"blk.{i}", n_embd, n_ff)
    settings: dict[str, Setting] = {
        "attention.head_count": n_heads,
        "attention.head_count_kv": kv_heads,
        "feed_forward_length": n_ff,
        "shortconv.l_cache": n_conv,
    }
    shape = _Shape("lfm2", n_embd, n_layers)
    return _write(path, shape, settings, tensors, ftype)


def write_qwen35(path: Path, *, seed: int = 0, ftype: str = "f32", n_experts: int = 0) -> Path:
    """A hybrid: a delta net in three layers of four, gated attention in the fourth.

    With `n_experts` it is a qwen35moe: each token goes through two of them and a shared one.
    """
    n_embd, n_layers, n_ff = 64, 4, 128
    draw = _Draw(seed)
    tensors = _ends(draw, VOCABULARY, n_embd)
    for i in range(n_layers):
        at = f"blk.{i}"
        if (i + 1) % 4:
            tensors |= _delta_net(draw, at, n_embd)
        else:
            tensors |= _attention(draw, at, n_embd, 4, 2)
            tensors[f"{at}.attn_q.weight"] = draw.matrix(2 * n_embd, n_embd, gain=2.0)
            tensors |= _head_norms(draw, at, n_embd // 4)
        if n_experts:
            tensors |= _experts(draw, at, n_embd, n_ff // 2, n_experts)
            tensors |= _shared_expert(draw, at, n_embd, n_ff // 2)
            tensors[f"{at}.ffn_gate_inp_shexp.weight"] = draw.vector(n_embd, 0.1)
        else:
            tensors |= _feed_forward(draw, at, n_embd, n_ff)
        tensors.pop(f"{at}.ffn_norm.weight", None)
        tensors[f"{at}.post_attention_norm.weight"] = draw.norm(n_embd)
    settings: dict[str, Setting] = {
        **_heads(4, 2, n_embd // 4),
        "feed_forward_length": n_ff,
        "full_attention_interval": 4,
        "rope.dimension_count": 8,
        "rope.dimension_sections": [2, 1, 1, 0],
        "ssm.conv_kernel": 4,
        "ssm.group_count": 2,
        "ssm.inner_size": 128,
        "ssm.state_size": 32,
        "ssm.time_step_rank": 4,
        **(_expert_counts(n_experts, n_ff // 2) if n_experts else {}),
    }
    if n_experts:
        settings["expert_shared_feed_forward_length"] = n_ff // 2
    shape = _Shape("qwen35moe" if n_experts else "qwen35", n_embd, n_layers)
    return _write(path, shape, settings, tensors, ftype)


def write_qwen35moe(path: Path, *, seed: int = 0, ftype: str = "f32") -> Path:
    """A hybrid whose feed-forward layers are mixtures."""
    return write_qwen35(path, seed=seed, ftype=ftype, n_experts=8)


def write_nemotron_h(path: Path, *, seed: int = 0, ftype: str = "f32") -> Path:
    """A hybrid: a layer is either a Mamba 2, an attention or a feed-forward one."""
    n_embd, n_ff = 64, 128
    draw = _Draw(seed)
    kinds = "MFAFM"
    tensors = _ends(draw, VOCABULARY, n_embd)
    for i, kind in enumerate(kinds):
        at = f"blk.{i}"
        if kind == "M":
            tensors |= _mamba2(draw, at, n_embd)
        elif kind == "A":
            tensors |= _attention(draw, at, n_embd, 4, 2)
        else:
            tensors[f"{at}.ffn_up.weight"] = draw.matrix(n_ff, n_embd)
            tensors[f"{at}.ffn_down.weight"] = draw.matrix(n_embd, n_ff)
        tensors[f"{at}.attn_norm.weight"] = draw.norm(n_embd)
    settings: dict[str, Setting] = {
        **_heads(4, [2 * (kind == "A") for kind in kinds], n_embd // 4),
        "attention.layer_norm_epsilon": 1e-5,
        "feed_forward_length": [n_ff * (kind == "F") for kind in kinds],
        "ssm.conv_kernel": 4,
        "ssm.group_count": 2,
        "ssm.inner_size": 128,
        "ssm.state_size": 16,
        "ssm.time_step_rank": 4,
    }
    shape = _Shape("nemotron_h", n_embd, len(kinds))
    return _write(path, shape, settings, tensors, ftype)


def write_qwen3moe(path: Path, *, seed: int = 0, ftype: str = "f32") -> Path:
    """A mixture of experts: every token goes through two of them."""
    n_embd, n_layers, n_ff, n_experts = 64, 2, 64, 8
    draw = _Draw(seed)
    tensors = _ends(draw, VOCABULARY, n_embd)
    for i in range(n_layers):
        tensors |= _attention(draw, f"blk.{i}", n_embd, 4, 2)
        tensors |= _head_norms(draw, f"blk.{i}", n_embd // 4)
        tensors |= _experts(draw, f"blk.{i}", n_embd, n_ff, n_experts)
    settings: dict[str, Setting] = {
        **_heads(4, 2, n_embd // 4),
        **_expert_counts(n_experts, n_ff),
        "feed_forward_length": 2 * n_ff,
    }
    shape = _Shape("qwen3moe", n_embd, n_layers)
    return _write(path, shape, settings, tensors, ftype)


def write_gpt_oss(path: Path, *, seed: int = 0, ftype: str = "f32") -> Path:
    """A mixture with biases, attention sinks, and a sliding window in every other layer."""
    n_embd, n_layers, n_ff, n_experts, sliding_window = 64, 2, 64, 8, 16
    draw = _Draw(seed)
    tensors = _ends(draw, VOCABULARY, n_embd)
    for i in range(n_layers):
        at = f"blk.{i}"
        tensors |= _attention(draw, at, n_embd, 4, 2)
        tensors |= _experts(draw, at, n_embd, n_ff, n_experts)
        tensors[f"{at}.post_attention_norm.weight"] = tensors.pop(f"{at}.ffn_norm.weight")
        tensors[f"{at}.attn_sinks.weight"] = draw.vector(4, 1.0)
        tensors[f"{at}.attn_output.bias"] = draw.vector(n_embd, 0.1)
        tensors[f"{at}.ffn_gate_inp.bias"] = draw.vector(n_experts, 0.1)
        for name, n in (("gate", n_ff), ("up", n_ff), ("down", n_embd)):
            tensors[f"{at}.ffn_{name}_exps.bias"] = draw.matrix(n_experts, n, gain=0.1)
    settings: dict[str, Setting] = {
        **_heads(4, 2, n_embd // 4),
        **_expert_counts(n_experts, n_ff),
        "attention.sliding_window": sliding_window,
        "feed_forward_length": n_ff,
    }
    shape = _Shape("gpt-oss", n_embd, n_layers)
    return _write(path, shape, settings, tensors, ftype)


def write_gemma4(path: Path, *, seed: int = 0, ftype: str = "f32") -> Path:
    """Sliding layers with heads of another size than the full ones."""
    n_embd, n_ff, sliding_window = 64, 128, 16
    draw = _Draw(seed)
    slides = [True, False, True, False]
    tensors = _ends(draw, VOCABULARY, n_embd)
    tensors["token_embd.weight"] /= np.sqrt(n_embd)  # gemma scales it up again
    tensors["rope_freqs.weight"] = np.ones(16, np.float32)
    for i, sliding in enumerate(slides):
        at, head = f"blk.{i}", 16 if sliding else 32
        tensors |= _wide_attention(draw, at, n_embd, 4, 2, head)
        tensors |= _head_norms(draw, at, head)
        tensors |= _feed_forward(draw, at, n_embd, n_ff)
        tensors[f"{at}.post_attention_norm.weight"] = draw.norm(n_embd)
        tensors[f"{at}.post_ffw_norm.weight"] = draw.norm(n_embd)
    settings: dict[str, Setting] = {
        **_heads(4, 2, 32),
        "attention.key_length_swa": 16,
        "attention.value_length_swa": 16,
        "attention.sliding_window": sliding_window,
        "attention.sliding_window_pattern": slides,
        "embedding_length_per_layer_input": 0,
        "feed_forward_length": n_ff,
        "rope.dimension_count_swa": 16,
    }
    shape = _Shape("gemma4", n_embd, len(slides))
    return _write(path, shape, settings, tensors, ftype)


def write_deepseek2(path: Path, *, seed: int = 0, ftype: str = "f32") -> Path:
    """Multi-head latent attention: one compressed row per token is all the cache holds."""
    n_embd, n_layers, n_ff, n_experts = 64, 2, 64, 8
    draw = _Draw(seed)
    tensors = _ends(draw, VOCABULARY, n_embd)
    for i in range(n_layers):
        tensors |= _latent_attention(draw, f"blk.{i}", n_embd)
        if i:
            tensors |= _experts(draw, f"blk.{i}", n_embd, n_ff, n_experts)
            tensors |= _shared_expert(draw, f"blk.{i}", n_embd, n_ff)
        else:
            tensors |= _feed_forward(draw, f"blk.{i}", n_embd, n_ff)
    settings: dict[str, Setting] = {
        **_expert_counts(n_experts, n_ff),
        "attention.head_count": 4,
        "attention.head_count_kv": 1,
        "attention.q_lora_rank": 32,
        "attention.kv_lora_rank": 32,
        "attention.key_length": 40,
        "attention.value_length": 32,
        "attention.key_length_mla": 24,
        "attention.value_length_mla": 16,
        "expert_shared_count": 1,
        "feed_forward_length": n_ff,
        "expert_weights_scale": 1.0,
        "leading_dense_block_count": 1,
        "rope.dimension_count": 8,
    }
    shape = _Shape("deepseek2", n_embd, n_layers)
    return _write(path, shape, settings, tensors, ftype)


WRITERS: dict[str, Callable[..., Path]] = {
    "llama": write_llama,
    "gemma3": write_gemma3,
    "mamba": write_mamba,
    "lfm2": write_lfm2,
    "qwen35": write_qwen35,
    "qwen35moe": write_qwen35moe,
    "nemotron_h": write_nemotron_h,
    "qwen3moe": write_qwen3moe,
    "gpt_oss": write_gpt_oss,
    "gemma4": write_gemma4,
    "deepseek2": write_deepseek2,
}
RECURRENT = ("mamba", "lfm2", "qwen35", "qwen35moe", "nemotron_h")  # they keep a state


# -- weights ----------------------------------------------------------------------------------


class _Draw:
    """Random weights that neither fade nor explode on their way through the layers."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def matrix(self, n_out: int, n_in: int, gain: float = 1.0) -> Array:
        weights = self._rng.standard_normal((n_out, n_in), dtype=np.float32)
        weights *= gain / np.sqrt(n_in)
        return weights

    def matrices(self, n: int, n_out: int, n_in: int) -> Array:
        """One for each expert or head."""
        return self.matrix(n * n_out, n_in).reshape(n, n_out, n_in)

    def norm(self, n: int) -> Array:
        return 1 + self.vector(n, 0.1)

    def vector(self, n: int, scale: float) -> Array:
        weights = self._rng.standard_normal(n, dtype=np.float32)
        weights *= scale
        return weights


def _ends(draw: _Draw, vocab: Vocabulary, n_embd: int) -> dict[str, Array]:
    n_vocab = len(vocab.tokens)
    output = draw.matrix(n_vocab, n_embd, gain=3.0)
    output[: len(SPECIAL)] = 0  # a greedy text does not end by chance
    return {
        "token_embd.weight": draw.matrix(n_vocab, n_embd, gain=float(np.sqrt(n_embd))),
        "output_norm.weight": draw.norm(n_embd),
        "output.weight": output,
    }


def _attention(draw: _Draw, at: str, n_embd: int, n_heads: int, n_kv: int) -> dict[str, Array]:
    n_kv_embd = n_embd // n_heads * n_kv
    return {
        f"{at}.attn_norm.weight": draw.norm(n_embd),
        # Sharp attention: what comes next hangs on what came before, not on the last token alone.
        f"{at}.attn_q.weight": draw.matrix(n_embd, n_embd, gain=2.0),
        f"{at}.attn_k.weight": draw.matrix(n_kv_embd, n_embd, gain=2.0),
        f"{at}.attn_v.weight": draw.matrix(n_kv_embd, n_embd),
        f"{at}.attn_output.weight": draw.matrix(n_embd, n_embd),
    }


def _head_norms(draw: _Draw, at: str, head_size: int) -> dict[str, Array]:
    return {
        f"{at}.attn_q_norm.weight": draw.norm(head_size),
        f"{at}.attn_k_norm.weight": draw.norm(head_size),
    }


def _feed_forward(draw: _Draw, at: str, n_embd: int, n_ff: int) -> dict[str, Array]:
    return {
        f"{at}.ffn_norm.weight": draw.norm(n_embd),
        f"{at}.ffn_gate.weight": draw.matrix(n_ff, n_embd),
        f"{at}.ffn_up.weight": draw.matrix(n_ff, n_embd),
        f"{at}.ffn_down.weight": draw.matrix(n_embd, n_ff),
    }


def _mamba(
    draw: _Draw, at: str, n_embd: int, n_inner: int, n_rank: int, n_state: int, n_conv: int
) -> dict[str, Array]:
    decay = -np.arange(1, n_state + 1, dtype=np.float32)  # llama.cpp wants -exp(A_log)
    return {
        f"{at}.attn_norm.weight": draw.norm(n_embd),
        f"{at}.ssm_in.weight": draw.matrix(2 * n_inner, n_embd),
        f"{at}.ssm_conv1d.weight": draw.matrix(n_inner, n_conv),
        f"{at}.ssm_conv1d.bias": draw.vector(n_inner, 0.1),
        f"{at}.ssm_x.weight": draw.matrix(n_rank + 2 * n_state, n_inner),
        f"{at}.ssm_dt.weight": draw.matrix(n_inner, n_rank),
        f"{at}.ssm_dt.bias": draw.vector(n_inner, 1.0) - 2,
        f"{at}.ssm_a": np.tile(decay, (n_inner, 1)),
        f"{at}.ssm_d": draw.norm(n_inner),
        f"{at}.ssm_out.weight": draw.matrix(n_embd, n_inner),
    }


def _short_convolution(draw: _Draw, at: str, n_embd: int, n_conv: int) -> dict[str, Array]:
    return {
        f"{at}.attn_norm.weight": draw.norm(n_embd),
        f"{at}.shortconv.conv.weight": draw.matrix(n_embd, n_conv),
        f"{at}.shortconv.in_proj.weight": draw.matrix(3 * n_embd, n_embd),
        f"{at}.shortconv.out_proj.weight": draw.matrix(n_embd, n_embd),
    }


def _heads(n_heads: int, n_kv_heads: int | list[int], head_size: int) -> dict[str, Setting]:
    return {
        "attention.head_count": n_heads,
        "attention.head_count_kv": n_kv_heads,
        "attention.key_length": head_size,
        "attention.value_length": head_size,
        "rope.dimension_count": head_size,
    }


def _expert_counts(n_experts: int, n_ff: int) -> dict[str, Setting]:
    return {
        "expert_count": n_experts,
        "expert_used_count": 2,
        "expert_feed_forward_length": n_ff,
    }


def _experts(draw: _Draw, at: str, n_embd: int, n_ff: int, n_experts: int) -> dict[str, Array]:
    return {
        f"{at}.ffn_norm.weight": draw.norm(n_embd),
        f"{at}.ffn_gate_inp.weight": draw.matrix(n_experts, n_embd),
        f"{at}.ffn_gate_exps.weight": draw.matrices(n_experts, n_ff, n_embd),
        f"{at}.ffn_up_exps.weight": draw.matrices(n_experts, n_ff, n_embd),
        f"{at}.ffn_down_exps.weight": draw.matrices(n_experts, n_embd, n_ff),
    }


def _shared_expert(draw: _Draw, at: str, n_embd: int, n_ff: int) -> dict[str, Array]:
    return {
        f"{at}.ffn_gate_shexp.weight": draw.matrix(n_ff, n_embd),
        f"{at}.ffn_up_shexp.weight": draw.matrix(n_ff, n_embd),
        f"{at}.ffn_down_shexp.weight": draw.matrix(n_embd, n_ff),
    }


def _wide_attention(
    draw: _Draw, at: str, n_embd: int, n_heads: int, n_kv: int, head: int
) -> dict[str, Array]:
    """Heads of a size of their own."""
    return {
        f"{at}.attn_norm.weight": draw.norm(n_embd),
        f"{at}.attn_q.weight": draw.matrix(n_heads * head, n_embd),
        f"{at}.attn_k.weight": draw.matrix(n_kv * head, n_embd),
        f"{at}.attn_v.weight": draw.matrix(n_kv * head, n_embd),
        f"{at}.attn_output.weight": draw.matrix(n_embd, n_heads * head),
    }


def _latent_attention(draw: _Draw, at: str, n_embd: int) -> dict[str, Array]:
    return {
        f"{at}.attn_norm.weight": draw.norm(n_embd),
        f"{at}.attn_q_a.weight": draw.matrix(32, n_embd, gain=2.0),
        f"{at}.attn_q_a_norm.weight": draw.norm(32),
        f"{at}.attn_q_b.weight": draw.matrix(4 * 24, 32, gain=2.0),
        f"{at}.attn_kv_a_mqa.weight": draw.matrix(32 + 8, n_embd, gain=2.0),
        f"{at}.attn_kv_a_norm.weight": draw.norm(32),
        f"{at}.attn_k_b.weight": draw.matrices(4, 32, 16),
        f"{at}.attn_v_b.weight": draw.matrices(4, 16, 32),
        f"{at}.attn_output.weight": draw.matrix(n_embd, 4 * 16, gain=2.0),
    }


def _delta_net(draw: _Draw, at: str, n_embd: int) -> dict[str, Array]:
    n_keys, n_values, size = 2, 4, 32
    n_conv = (2 * n_keys + n_values) * size
    return {
        f"{at}.attn_norm.weight": draw.norm(n_embd),
        f"{at}.attn_qkv.weight": draw.matrix(n_conv, n_embd),
        f"{at}.attn_gate.weight": draw.matrix(n_values * size, n_embd),
        f"{at}.ssm_conv1d.weight": draw.matrix(n_conv, 4),
        f"{at}.ssm_dt.bias": draw.vector(n_values, 0.5),
        f"{at}.ssm_a": -np.exp(np.linspace(-3, 0, n_values, dtype=np.float32)),
        f"{at}.ssm_alpha.weight": draw.matrix(n_values, n_embd),
        f"{at}.ssm_beta.weight": draw.matrix(n_values, n_embd),
        f"{at}.ssm_norm.weight": draw.norm(size),
        f"{at}.ssm_out.weight": draw.matrix(n_embd, n_values * size),
    }


def _mamba2(draw: _Draw, at: str, n_embd: int) -> dict[str, Array]:
    n_inner, n_state, n_groups, n_heads = 128, 16, 2, 4
    n_conv = n_inner + 2 * n_groups * n_state
    return {
        f"{at}.ssm_in.weight": draw.matrix(n_inner + n_conv + n_heads, n_embd),
        f"{at}.ssm_conv1d.weight": draw.matrix(n_conv, 4),
        f"{at}.ssm_conv1d.bias": draw.vector(n_conv, 0.1),
        f"{at}.ssm_dt.bias": draw.vector(n_heads, 1.0) - 2,
        f"{at}.ssm_a": -np.arange(1, n_heads + 1, dtype=np.float32).reshape(n_heads, 1),
        f"{at}.ssm_d": draw.norm(n_heads).reshape(n_heads, 1),
        f"{at}.ssm_norm.weight": draw.norm(n_inner).reshape(n_groups, -1),
        f"{at}.ssm_out.weight": draw.matrix(n_embd, n_inner),
    }


# -- files ------------------------------------------------------------------------------------


_N_CTX = 512


@dataclass(frozen=True)
class _Shape:
    architecture: str
    n_embd: int
    n_layers: int


def _write(
    path: Path,
    shape: _Shape,
    settings: Mapping[str, Setting],
    tensors: Mapping[str, Array],
    ftype: str,
    vocab: Vocabulary = VOCABULARY,
    max_tensors: int = 0,
) -> Path:
    writer = gguf.GGUFWriter(path, shape.architecture, split_max_tensors=max_tensors)
    writer.add_name(f"tiny {shape.architecture}")
    writer.add_file_type(file_type(ftype))
    writer.add_block_count(shape.n_layers)
    writer.add_context_length(_N_CTX)
    writer.add_embedding_length(shape.n_embd)
    writer.add_layer_norm_rms_eps(1e-5)
    for key, value in settings.items():
        add_setting(writer, f"{shape.architecture}.{key}", value)
    vocab.write(writer)
    for name, weights in tensors.items():
        kind = _tensor_type(name, weights, ftype)
        writer.add_tensor(name, gguf.quants.quantize(weights, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    first: Path = writer.format_shard_names(path)[0]
    return first


def add_setting(writer: gguf.GGUFWriter, key: str, value: Setting) -> None:
    """One of a header's keys."""
    if isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    else:
        writer.add_array(key, list(value))


def file_type(name: str) -> int:
    """llama.cpp's number for a file type such as "f16" or "q4_k_m"."""
    prefix = "ALL" if name == "f32" else "MOSTLY"
    return int(LlamaFileType[f"{prefix}_{name.upper()}"])


def _tensor_type(name: str, weights: Array, ftype: str) -> GGMLQuantizationType:
    # As llama.cpp's own converter: vectors, convolutions and Mamba's decay stay as they are.
    fixed = ("ssm_a", "ssm_d", "ssm_norm.weight", ".bias", "ffn_gate_inp.weight")
    if weights.ndim == 1 or "conv" in name.split(".")[-2] or name.endswith(fixed):
        return GGMLQuantizationType.F32
    kind = GGMLQuantizationType[ftype.upper()]
    fits = weights.shape[-1] % GGML_QUANT_SIZES[kind][0] == 0
    return kind if fits else GGMLQuantizationType.F32


def perturb(src: Path, dst: Path, noise: float = 0.05, seed: int = 1) -> Path:
    """A copy whose matrices carry noise, a share of their own spread: a drafter for `src`.

    It proposes the target's greedy token at 0.7 to 0.9 of the positions with noise 0.05, and at
    about half of them with 0.1.
    """
    shutil.copyfile(src, dst)
    reader = gguf.GGUFReader(dst, "r+")
    rng = np.random.default_rng(seed)
    for tensor in reader.tensors:
        weights = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        # Mamba's decay is a matrix too, but one that must stay negative; it is no "weight".
        if weights.ndim == 2 and tensor.name.endswith(".weight"):
            spread = np.float32(noise * weights.std())
            noisy = weights + spread * rng.standard_normal(weights.shape, dtype=np.float32)
            tensor.data[...] = gguf.quants.quantize(noisy, tensor.tensor_type)
    reader.data.flush()
    return dst
