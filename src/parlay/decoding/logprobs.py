"""Log-probabilities of emitted tokens, from the target's raw logits.

Knows no samplers: the figures are the model's own distribution, before bias and temperature.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from parlay.decoding.sampling import Row


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One emitted token's log-probability, and the most likely tokens at its place."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def token_logprob(row: Row, token: int, n_top: int) -> TokenLogprob:
    """Score `token` and the `n_top` best under this row."""
    wide = row.astype(np.float64)
    wide -= wide.max()
    wide -= np.log(np.exp(wide).sum())
    top: tuple[tuple[int, float], ...] = ()
    if n_top > 0:
        n_top = min(n_top, len(wide))
        best = np.argpartition(-wide, n_top - 1)[:n_top]
        top = tuple((int(i), float(wide[i])) for i in best[np.argsort(-wide[best], kind="stable")])
    return TokenLogprob(token, float(wide[token]), top)
