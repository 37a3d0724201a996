"""Rounds weights in training as the shipped file will, so that the drafter learns to live with it.

Knows ggml's two block formats: 32 numbers share one scale of 16 bits.
"""

from __future__ import annotations

from typing import Any

import torch

_BLOCK = 32


def round_q4_0(weights: Any) -> Any:
    """What Q4_0 keeps of the weights; the gradient passes as if nothing had happened."""
    blocks = weights.detach().reshape(-1, _BLOCK)
    # The number furthest from zero becomes -8 exactly, as ggml has it.
    furthest = blocks.gather(1, blocks.abs().argmax(1, keepdim=True))
    scale = furthest / -8
    steps = torch.where(scale == 0, torch.zeros_like(blocks), blocks / scale)
    kept = torch.clamp(torch.floor(steps + 8.5), max=15) - 8
    return weights + ((kept * scale.half().float()).reshape(weights.shape) - weights.detach())


def round_q8_0(weights: Any) -> Any:
    """What Q8_0 keeps of the weights."""
    blocks = weights.detach().reshape(-1, _BLOCK)
    scale = blocks.abs().amax(1, keepdim=True) / 127
    steps = torch.where(scale == 0, torch.zeros_like(blocks), blocks / scale)
    kept = torch.sign(steps) * torch.floor(steps.abs() + 0.5)
    return weights + ((kept * scale.half().float()).reshape(weights.shape) - weights.detach())


ROUNDING = {"q4_0": round_q4_0, "q8_0": round_q8_0}
