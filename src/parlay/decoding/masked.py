"""Rows of logits under a constraint, each masked when it is read.

Knows nothing of grammars or models. Rows behind a rejection are never read. Where only one token
may come, or the likeliest is taken and may, the token is known without a mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from parlay.decoding.constraint import Constraint
from parlay.decoding.mask import Mask
from parlay.decoding.sampling import Row, Sampling, likeliest
from parlay.errors import BadRequest

_PREPARED = 8  # rows: those behind them are seldom read
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
# The most that eight logits may be, by the byte of their mask: looked up, a row takes half the time
# of arithmetic and a tenth of a choice.
_MOST = np.where(_BITS, np.inf, -np.inf).astype(np.float32)


class Masked:
    """The rows of one draft, each given that the draft held before it."""

    def __init__(
        self,
        p: NDArray[np.float32],
        constraint: Constraint,
        draft: Sequence[int],
        sampling: Sampling,
    ) -> None:
        self._p = p
        self._constraint = constraint
        self._draft = draft
        self._likeliest = sampling.untouched

    def known(self, j: int) -> int | None:
        """The token of a row, where no mask is needed to tell."""
        before = self._draft[:j]
        must = self._constraint.must(before)
        if must is not None or not self._likeliest:
            return must
        token = likeliest(self._p[j])
        return token if self._constraint.permits(before, token) else None

    def __getitem__(self, j: int) -> Row:
        row: Row = self._p[j]
        allowed = self._constraint.allowed(self._draft[:j])
        return row if allowed is None else masked(row, allowed)


def prepare(constraint: Constraint, draft: Sequence[int], sampling: Sampling) -> None:
    """Have the masks of a draft's first rows computed before there are logits, where all of them
    will be asked for. A grammar that gives up does so again when its row is read."""
    if sampling.untouched:
        return
    with suppress(BadRequest):
        for j in range(min(len(draft) + 1, _PREPARED)):
            constraint.allowed(draft[:j])


def masked(row: Row, allowed: Mask) -> Row:
    """With -inf wherever a token may not come; columns beyond the mask mean nothing."""
    n_bytes = -(-len(row) // 8)
    if len(allowed) < n_bytes:
        allowed = np.concatenate([allowed, np.zeros(n_bytes - len(allowed), np.uint8)])
    if allowed[: len(row) // 8].all() and _is_whole(allowed, len(row)):
        return row
    found: Row = np.take(_MOST, allowed[:n_bytes], axis=0).reshape(-1)[: len(row)]
    return np.minimum(row, found, out=found)


def _is_whole(allowed: Mask, n: int) -> bool:
    return bool(np.unpackbits(allowed, count=n, bitorder="little").all())
