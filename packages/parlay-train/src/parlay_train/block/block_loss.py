"""How far drafted blocks are from the target: cross entropy over the kept tokens, row by row.

Knows rows and a head. Logits exist for some rows at a time, and their gradient is taken at once.
"""

from __future__ import annotations

from typing import Any

import torch

_NUMBERS_AT_ONCE = 1 << 29  # logits in memory
_NUMBERS_ON_CPU = 1 << 24


def cross_entropy(hidden: Any, head: Any, ids: Any, p: Any, weight: Any) -> Any:
    """Weighted mean over rows [n, width] of -sum p log q over the kept tokens [n, k]."""
    return _CrossEntropy.apply(hidden, head, ids, p, weight / weight.sum().clamp(min=1e-9))


class _CrossEntropy(torch.autograd.Function):  # type: ignore[misc]
    """With z the logits and q their softmax: dloss/dz = q sum(p) - p, weighted."""

    @staticmethod
    def forward(ctx: Any, hidden: Any, head: Any, ids: Any, p: Any, weight: Any) -> Any:
        dtype = torch.bfloat16 if hidden.is_cuda else hidden.dtype
        rows, matrix = hidden.to(dtype), head.to(dtype)
        learns = ctx.needs_input_grad[1]
        loss = hidden.new_zeros((), dtype=torch.float32)
        d_rows = torch.empty_like(rows)
        d_head = torch.zeros_like(head, dtype=torch.float32) if learns else None
        size = max(1, (_NUMBERS_AT_ONCE if hidden.is_cuda else _NUMBERS_ON_CPU) // len(head))
        for start in range(0, len(rows), size):
            at = slice(start, start + size)
            z = (rows[at] @ matrix.T).float()
            total = torch.logsumexp(z, -1, keepdim=True)
            w, kept = weight[at, None], p[at]
            loss += (w * kept * (total - z.gather(1, ids[at]))).sum()
            grad = z.sub_(total).exp_().mul_(w * kept.sum(-1, keepdim=True))
            grad = grad.scatter_add_(1, ids[at], -w * kept).to(dtype)
            d_rows[at] = grad @ matrix
            if d_head is not None:
                d_head += grad.T @ rows[at]
        ctx.save_for_backward(d_rows, d_head)
        ctx.dtypes = hidden.dtype, head.dtype
        return loss

    @staticmethod
    def backward(ctx: Any, scale: Any) -> Any:
        d_rows, d_head = ctx.saved_tensors
        rows, head = ctx.dtypes
        learned = None if d_head is None else (d_head * scale).to(head)
        return (d_rows * scale).to(rows), learned, None, None, None
