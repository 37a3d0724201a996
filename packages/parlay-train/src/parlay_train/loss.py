"""How far the drafter is from the target: KL over the kept tokens, all others as one more.

Knows rows and a head. Logits over a whole vocabulary are the largest thing in training, so they
exist for some rows at a time, and their gradient is taken at once.
"""

from __future__ import annotations

from typing import Any

import torch

_NUMBERS_AT_ONCE = 1 << 28  # logits in memory
_NUMBERS_ON_CPU = 1 << 24


def divergence(hidden: Any, head: Any, top_ids: Any, top_logprobs: Any, tail: Any) -> Any:
    """Mean KL(target || drafter) over rows [n, width]; `tail` is the log of what was not kept."""
    return _Divergence.apply(hidden, head, top_ids, top_logprobs, tail)


class _Divergence(torch.autograd.Function):  # type: ignore[misc]
    """With z the logits, q their softmax, K the kept tokens, S = sum of q over K, t the tail:

    loss     = sum_K p (log p - log q) + t (log t - log(1 - S))
    dloss/dz = q - p for a kept token, q (1 - t / (1 - S)) for any other
    """

    @staticmethod
    def forward(ctx: Any, hidden: Any, head: Any, ids: Any, logprobs: Any, tail: Any) -> Any:
        dtype = torch.bfloat16 if hidden.is_cuda else hidden.dtype
        rows, weights = hidden.to(dtype), head.to(dtype)
        loss = hidden.new_zeros((), dtype=torch.float32)
        d_rows = torch.empty_like(rows)
        d_head = torch.zeros_like(head, dtype=torch.float32)
        for at in _chunks(len(rows), len(head), hidden.is_cuda):
            logits = (rows[at] @ weights.T).float()
            part, grad = _chunk(logits, ids[at], logprobs[at].float(), tail[at].float())
            loss += part
            grad = grad.to(dtype)
            d_rows[at] = grad @ weights
            d_head += grad.T @ rows[at]
        n = max(1, len(rows))
        ctx.save_for_backward(d_rows / n, (d_head / n).to(head.dtype))
        ctx.dtype = hidden.dtype
        return loss / n

    @staticmethod
    def backward(ctx: Any, scale: Any) -> Any:
        d_rows, d_head = ctx.saved_tensors
        return (d_rows * scale).to(ctx.dtype), d_head * scale, None, None, None


def _chunks(n_rows: int, n_vocab: int, on_gpu: bool) -> list[slice]:
    size = max(1, (_NUMBERS_AT_ONCE if on_gpu else _NUMBERS_ON_CPU) // n_vocab)
    return [slice(at, at + size) for at in range(0, n_rows, size)]


def _chunk(z: Any, ids: Any, logp: Any, log_tail: Any) -> tuple[Any, Any]:
    """The summed loss of some rows, and its gradient to their logits (in place of them)."""
    total = torch.logsumexp(z, -1, keepdim=True)
    log_q = z.gather(1, ids) - total
    p, q, t = logp.exp(), log_q.exp(), log_tail.exp()[:, None]
    rest = (1 - q.sum(-1, keepdim=True)).clamp(min=1e-6)
    loss = (p * (logp - log_q)).sum() + (t * (log_tail[:, None] - rest.log())).sum()
    grad = z.sub_(total).exp_().mul_(1 - t / rest).scatter_(1, ids, q - p)
    return loss, grad
