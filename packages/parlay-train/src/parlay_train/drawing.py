"""From the target's logits to its next tokens, and to what is kept of its distributions.

Knows rows of logits; on a GPU they go up in one piece and only the kept part comes back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

_CANDIDATES = 256  # a token is drawn among so many


@dataclass(frozen=True, slots=True)
class Drawn:
    """For each row: the token drawn, and the likeliest tokens at temperature 1."""

    tokens: NDArray[np.int32]  # [n]
    top_ids: NDArray[np.int32]  # [n, k]
    top_logprobs: NDArray[np.float16]  # [n, k]
    tail_logprob: NDArray[np.float16]  # [n]


class Drawing:
    """Draws with noise from one seed."""

    def __init__(self, top_k: int, seed: int, device: str) -> None:
        self._top_k = top_k
        self._device = torch.device(device)
        self._noise = torch.Generator(self._device).manual_seed(seed)

    def draw(self, logits: NDArray[np.float32], temperature: NDArray[np.float32]) -> Drawn:
        """One token a row; temperature 0 takes the likeliest."""
        rows = torch.from_numpy(logits).to(self._device)
        heat = torch.from_numpy(temperature).to(self._device)[:, None]
        total = torch.logsumexp(rows, -1, keepdim=True)
        values, ids = torch.topk(rows, min(_CANDIDATES, rows.shape[-1]), dim=-1)
        logprobs = values - total
        chosen = self._choose(logprobs, heat)
        kept = logprobs[:, : self._top_k]
        tail = torch.log1p(-torch.exp(torch.logsumexp(kept, -1)).clamp(max=1.0))
        return Drawn(
            ids.gather(1, chosen)[:, 0].to(torch.int32).cpu().numpy(),
            ids[:, : self._top_k].to(torch.int32).cpu().numpy(),
            kept.to(torch.float16).cpu().numpy(),
            tail.to(torch.float16).cpu().numpy(),
        )

    def _choose(self, logprobs: Any, heat: Any) -> Any:
        uniform = torch.rand(logprobs.shape, generator=self._noise, device=self._device)
        gumbel = -torch.log(-torch.log(uniform.clamp(1e-9, 1 - 1e-7)))
        scores = torch.where(heat > 0, logprobs / heat.clamp(min=1e-6) + gumbel, logprobs)
        return scores.argmax(-1, keepdim=True)
