"""Rows of logits under a constraint, each masked when it is read.

Knows nothing of grammars or models. Rows behind a rejection are never read. Where the likeliest
token is what will be drawn and it may come, the row is left as it is: a mask would change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from parlay.decoding.constraint import Constraint
from parlay.decoding.sampling import Row, Sampling
from parlay.errors import BadRequest

_PREPARED = 8  # rows: those behind them are seldom read


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

    def __getitem__(self, j: int) -> Row:
        row: Row = self._p[j]
        before = self._draft[:j]
        if self._likeliest and self._constraint.permits(before, int(row.argmax())):
            return row
        allowed = self._constraint.allowed(before)
        return row if allowed is None else masked(row, allowed)


def prepare(constraint: Constraint, draft: Sequence[int], sampling: Sampling) -> None:
    """Have the masks of a draft's first rows computed before there are logits, where all of them
    will be asked for. A grammar that gives up does so again when its row is read."""
    if sampling.untouched:
        return
    with suppress(BadRequest):
        for j in range(min(len(draft) + 1, _PREPARED)):
            constraint.allowed(draft[:j])


def masked(row: Row, allowed: NDArray[np.bool_]) -> Row:
    """With -inf wherever a token may not come; columns beyond the
    mask mean nothing."""
    n = min(len(row), len(allowed))
    n_may = np.count_nonzero(allowed[:n])
    if n_may == len(row):
        return row
    found: Row = np.full(len(row), -np.inf, np.float32)
    if n_may <= n // 2:
        may = np.flatnonzero(allowed[:n])
        found[may] = row[may]
    else:
        found[:n] = row[:n]
        found[:n][~allowed[:n]] = -np.inf
    return found
