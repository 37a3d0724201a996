"""The drafter in training: a llama, computed as llama.cpp computes it.

Knows shapes and weights, named as GGUF names them; knows nothing of targets, losses or files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from parlay_train.student_shape import StudentShape

Rounding = Callable[[Any], Any]


class Student(nn.Module):  # type: ignore[misc]
    """Tokens in, hidden states out; the head is applied by whoever needs its rows."""

    def __init__(self, shape: StudentShape, seed: int = 0) -> None:
        super().__init__()
        self.shape = shape
        self.rounding: Rounding | None = None
        noise = torch.Generator().manual_seed(seed)
        self.token_embd = matrix(shape.n_vocab, shape.n_embd, shape.n_embd**-0.5, noise)
        self.output = (
            None if shape.tied else matrix(shape.n_vocab, shape.n_embd, shape.n_embd**-0.5, noise)
        )
        self.blk = nn.ModuleList([_Layer(shape, noise) for _ in range(shape.n_layers)])
        self.output_norm = nn.Parameter(torch.ones(shape.n_embd))
        self.register_buffer(
            "turns", rope_turns(shape.n_ctx, shape.head_size, shape.rope_base), persistent=False
        )

    def forward(self, tokens: Any) -> Any:
        """[batch, length] -> normed hidden states [batch, length, width]. Every text starts at
        position 0; what is padded on its right cannot be seen from it."""
        x = F.embedding(tokens, self.rounded(self.token_embd))
        turns = self.turns[: tokens.shape[1]]
        for layer in self.blk:
            x = layer(x, turns, self.rounded)
        return rms_norm(x, self.output_norm, self.shape.eps)

    @property
    def head(self) -> Any:
        """The matrix that predicts tokens, rounded if training rounds."""
        return self.rounded(self.token_embd if self.output is None else self.output)

    def start_from(self, embedding: Any) -> None:
        """Begin with these token embeddings, for reading and for predicting."""
        with torch.no_grad():
            for matrix in (self.token_embd, self.output):
                if matrix is not None:
                    matrix.copy_(embedding)

    def take(self, tensors: Mapping[str, Any]) -> None:
        """Begin with all of these weights, by their GGUF names."""
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                parameter.copy_(torch.from_numpy(tensors[f"{name}.weight"]))

    def rounded(self, matrix: Any) -> Any:
        return matrix if self.rounding is None else self.rounding(matrix)

    def tensors(self) -> dict[str, Any]:
        """Weights by their GGUF names."""
        found = {f"{name}.weight": p.detach() for name, p in self.named_parameters()}
        return {name: weights.float().cpu() for name, weights in found.items()}


class _Layer(nn.Module):  # type: ignore[misc]
    def __init__(self, shape: StudentShape, noise: Any) -> None:
        super().__init__()
        self.shape = shape
        width, n_kv = shape.n_embd, shape.n_kv_heads * shape.head_size
        spread = width**-0.5
        # Quiet branches at first, the quieter the more there are of them.
        out = spread * (2 * shape.n_layers) ** -0.5
        self.attn_norm = nn.Parameter(torch.ones(width))
        self.attn_q = matrix(width, width, spread, noise)
        self.attn_k = matrix(n_kv, width, spread, noise)
        self.attn_v = matrix(n_kv, width, spread, noise)
        self.attn_output = matrix(width, width, out * 0.1, noise)
        self.ffn_norm = nn.Parameter(torch.ones(width))
        self.ffn_gate = matrix(shape.n_ff, width, spread, noise)
        self.ffn_up = matrix(shape.n_ff, width, spread, noise)
        self.ffn_down = matrix(width, shape.n_ff, out * 0.1, noise)

    def forward(self, x: Any, turns: Any, rounded: Rounding) -> Any:
        x = x + self._attend(rms_norm(x, self.attn_norm, self.shape.eps), turns, rounded)
        y = rms_norm(x, self.ffn_norm, self.shape.eps)
        inner = F.silu(F.linear(y, rounded(self.ffn_gate))) * F.linear(y, rounded(self.ffn_up))
        return x + F.linear(inner, rounded(self.ffn_down))

    def _attend(self, x: Any, turns: Any, rounded: Rounding) -> Any:
        batch, length, width = x.shape
        heads = (batch, length, -1, self.shape.head_size)
        q = _turn(F.linear(x, rounded(self.attn_q)).view(heads), turns)
        k = _turn(F.linear(x, rounded(self.attn_k)).view(heads), turns)
        v = F.linear(x, rounded(self.attn_v)).view(heads)
        group = self.shape.n_heads // self.shape.n_kv_heads
        k, v = (each.repeat_interleave(group, dim=2) for each in (k, v))
        mixed = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        )
        return F.linear(
            mixed.transpose(1, 2).reshape(batch, length, width), rounded(self.attn_output)
        )


def matrix(n_out: int, n_in: int, spread: float, noise: Any) -> Any:
    return nn.Parameter(torch.randn(n_out, n_in, generator=noise) * spread)


def rms_norm(x: Any, weight: Any, eps: float) -> Any:
    """In 32 bits, whatever comes in; 16 go out where that is what the products run on."""
    y = x.float()
    return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps) * weight).to(x.dtype)


def rope_turns(n_positions: int, head_size: int, rope_base: float) -> Any:
    """Cosine and sine for each position and pair of numbers."""
    pairs = torch.arange(0, head_size, 2, dtype=torch.float32)
    angles = torch.arange(n_positions, dtype=torch.float32)[:, None] * (
        rope_base ** (-pairs / head_size)
    )
    return torch.stack((angles.cos(), angles.sin()), -1)


def _turn(x: Any, turns: Any) -> Any:
    """Rotary positions over neighbouring pairs: how llama.cpp has it for this architecture."""
    a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = turns[None, :, None, :, 0], turns[None, :, None, :, 1]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2).to(x.dtype)
