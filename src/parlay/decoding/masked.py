"""Rows of logits under a constraint, each masked when it is read.

Knows nothing of grammars or models. Rows behind a rejection are never read. Where only one token
may come, or a few questions tell which is taken, the token is known without a mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from parlay.decoding.constraint import Constraint
from parlay.decoding.mask import Mask
from parlay.decoding.sampling import Row, Sampling, draw, draw_permitted
from parlay.errors import BadRequest

_N_LIMITS = 8  # masks in another form: in a string, one comes again and again
_PREPARED = 8  # rows: those behind them are seldom read
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
# The most that eight logits may be, by the byte of their mask.
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
        self._sampling = sampling

    def known(self, j: int) -> int | None:
        """The token of a row, where no mask is needed to tell."""
        must = self._constraint.must(self._draft[:j])
        if must is not None or not self._sampling.untouched:
            return must
        return self._asked(j, (), 0)

    def drawn(self, j: int, history: Sequence[int], position: int) -> int:
        """The token of a row that is not known."""
        if not self._sampling.untouched:
            found = self._asked(j, history, position)
            if found is not None:
                return found
        return draw(self[j], self._sampling, history, position)

    def _asked(self, j: int, history: Sequence[int], position: int) -> int | None:
        permits = partial(self._constraint.permits, self._draft[:j])
        return draw_permitted(self._p[j], self._sampling, history, position, permits)

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
    limits = _limits(allowed.tobytes(), len(row))
    return row if limits is None else np.minimum(row, limits)


@lru_cache(_N_LIMITS)
def _limits(allowed: bytes, n: int) -> Row | None:
    """The most that each logit may be; None: all may be what they are."""
    n_bytes = -(-n // 8)
    mask = np.frombuffer(allowed[:n_bytes].ljust(n_bytes, b"\0"), np.uint8)
    if np.unpackbits(mask, count=n, bitorder="little").all():
        return None
    found: Row = np.take(_MOST, mask, axis=0).reshape(-1)[:n]
    found.flags.writeable = False
    return found
