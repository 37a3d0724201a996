"""The block drafter in training: a DFlash drafter, computed as llama.cpp computes it.

Knows shapes and weights, named as GGUF names them; knows nothing of targets, losses or files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from parlay_train.block.block_shape import BlockShape
from parlay_train.student import matrix, rms_norm, rope_turns

Rounding = Callable[[Any], Any]


class BlockStudent(nn.Module):  # type: ignore[misc]
    """States and anchors in, hidden states of the masks out; the head is applied by others."""

    def __init__(self, shape: BlockShape, embedding: Any, head: Any, seed: int = 0) -> None:
        """`embedding` is the target's and stays as it is; `head`: the rows its own begins with, or
        the target's whole one, which stays as it is too."""
        super().__init__()
        self.shape = shape
        self.rounding: Rounding | None = None
        noise = torch.Generator().manual_seed(seed)
        width, read = shape.n_embd, len(shape.layers) * shape.n_embd
        self.fc = matrix(width, read, read**-0.5, noise)
        # Some of the target's numbers are a thousand times larger than others; all learn alike
        # if they are evened out first. In the file both are one matrix.
        self.register_buffer("evened", torch.ones(read))
        self.enc_output_norm = nn.Parameter(torch.ones(width))
        self.blk = nn.ModuleList([_Layer(shape, noise) for _ in range(shape.n_layers)])
        self.output_norm = nn.Parameter(torch.ones(width))
        self.output = nn.Parameter(head.clone()) if shape.n_head_rows else None
        self.register_buffer("embedding", embedding, persistent=False)
        self.register_buffer("borrowed", None if shape.n_head_rows else head, persistent=False)
        n_positions = shape.n_ctx + shape.block_size
        turns = rope_turns(n_positions, shape.head_size, shape.rope_base)
        self.register_buffer("turns", turns, persistent=False)

    def forward(self, states: Any, tokens: Any, anchors: Any, block_size: int) -> Any:
        """[n, length, read], [n, length], [n, m] -> [n, m, block_size - 1, width], normed.

        Block m of text n begins with the token at its anchor and sees every state before it.
        """
        n, m = anchors.shape
        context = F.linear(states * self.evened, self.fc)
        context = rms_norm(context, self.enc_output_norm, self.shape.eps)
        blocks = torch.full((n, m, block_size), self.shape.mask, device=tokens.device)
        blocks[:, :, 0] = tokens.gather(1, anchors)
        x = self.embedding[blocks].flatten(1, 2).to(context.dtype)
        places = (anchors[:, :, None] + torch.arange(block_size, device=tokens.device)).flatten(1)
        seen = _seen(anchors, states.shape[1], block_size)
        for layer in self.blk:
            x = layer(x, context, places, seen, self.turns, self.rounded)
        x = rms_norm(x, self.output_norm, self.shape.eps)
        return x.view(n, m, block_size, -1)[:, :, 1:]

    @property
    def head(self) -> Any:
        """The matrix that predicts tokens, rounded if training rounds."""
        return self.borrowed if self.output is None else self.rounded(self.output)

    def rounded(self, matrix: Any) -> Any:
        return matrix if self.rounding is None else self.rounding(matrix)

    def even_out(self, states: Any) -> None:
        """Begin with every number of these states about as large as any other."""
        self.evened.copy_(1 / states.float().abs().mean(0).clamp(min=1e-4))

    def tensors(self) -> dict[str, Any]:
        """Weights by their GGUF names."""
        found = {f"{name}.weight": p.detach() for name, p in self.named_parameters()}
        found["enc.output_norm.weight"] = found.pop("enc_output_norm.weight")
        found["fc.weight"] = found["fc.weight"] * self.evened
        return {name: weights.float().cpu() for name, weights in found.items()}


class _Layer(nn.Module):  # type: ignore[misc]
    def __init__(self, shape: BlockShape, noise: Any) -> None:
        super().__init__()
        self.shape = shape
        width = shape.n_embd
        n_q, n_kv = shape.n_heads * shape.head_size, shape.n_kv_heads * shape.head_size
        spread = width**-0.5
        # The more branches there are, the quieter each. Masks say nothing by themselves: what they
        # become comes from here, so that silence would only cost time.
        out = (2 * shape.n_layers) ** -0.5
        self.attn_norm = nn.Parameter(torch.ones(width))
        self.attn_q = matrix(n_q, width, spread, noise)
        self.attn_k = matrix(n_kv, width, spread, noise)
        self.attn_v = matrix(n_kv, width, spread, noise)
        self.attn_output = matrix(width, n_q, out * n_q**-0.5, noise)
        self.attn_q_norm = nn.Parameter(torch.ones(shape.head_size))
        self.attn_k_norm = nn.Parameter(torch.ones(shape.head_size))
        self.ffn_norm = nn.Parameter(torch.ones(width))
        self.ffn_gate = matrix(shape.n_ff, width, spread, noise)
        self.ffn_up = matrix(shape.n_ff, width, spread, noise)
        self.ffn_down = matrix(width, shape.n_ff, out * shape.n_ff**-0.5, noise)

    def forward(
        self, x: Any, context: Any, places: Any, seen: Any, turns: Any, rounded: Rounding
    ) -> Any:
        y = rms_norm(x, self.attn_norm, self.shape.eps)
        x = x + self._attend(y, context, places, seen, turns, rounded)
        y = rms_norm(x, self.ffn_norm, self.shape.eps)
        inner = F.silu(F.linear(y, rounded(self.ffn_gate))) * F.linear(y, rounded(self.ffn_up))
        return x + F.linear(inner, rounded(self.ffn_down))

    def _attend(
        self, x: Any, context: Any, places: Any, seen: Any, turns: Any, rounded: Rounding
    ) -> Any:
        """Over the context's keys and values, which come straight from the states, and the block's
        own."""
        shape, eps = self.shape, self.shape.eps
        heads = (*x.shape[:2], -1, shape.head_size)
        q = F.linear(x, rounded(self.attn_q)).view(heads)
        q = _turn(rms_norm(q, self.attn_q_norm, eps), turns[places])
        every = torch.cat([context, x], 1)
        there = torch.arange(context.shape[1], device=x.device).expand(len(x), -1)
        wide = (*every.shape[:2], -1, shape.head_size)
        k = F.linear(every, rounded(self.attn_k)).view(wide)
        k = _turn(rms_norm(k, self.attn_k_norm, eps), turns[torch.cat([there, places], 1)])
        v = F.linear(every, rounded(self.attn_v)).view(wide)
        group = shape.n_heads // shape.n_kv_heads
        k, v = (each.repeat_interleave(group, dim=2) for each in (k, v))
        mixed = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=seen[:, None]
        )
        return F.linear(mixed.transpose(1, 2).flatten(2), rounded(self.attn_output))


def _seen(anchors: Any, length: int, block_size: int) -> Any:
    """[n, m * block, length + m * block]: states before the anchor, and the row's own block."""
    n, m = anchors.shape
    before = torch.arange(length, device=anchors.device) < anchors[:, :, None]
    before = before.repeat_interleave(block_size, dim=1)
    owner = torch.arange(m, device=anchors.device).repeat_interleave(block_size)
    own = (owner[:, None] == owner[None, :]).expand(n, -1, -1)
    return torch.cat([before, own], 2)


def _turn(x: Any, turns: Any) -> Any:
    """Rotary positions over halves: how llama.cpp has it for this architecture."""
    a, b = x.float().chunk(2, -1)
    cos, sin = turns[:, :, None, :, 0], turns[:, :, None, :, 1]
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1).to(x.dtype)
