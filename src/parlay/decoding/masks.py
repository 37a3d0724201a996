"""Masks, and rows of logits under a constraint: each is masked when it is read, if it must be.

Knows nothing of grammars or models. Rows behind a rejection are never read. Where only one token
may come, or a few questions tell which is taken, the token is known without a mask, and it is the
one that the masked row would give: where that hangs on the mass of tokens nobody asked about, or on
rounding, the mask is computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from parlay.decoding.constraint import Constraint, Mask
from parlay.decoding.sampling import (
    Logits,
    Row,
    Sampling,
    adjusted,
    draw,
    drawn_of,
    mass,
    n_within,
)
from parlay.errors import BadRequest

Permits = Callable[[int], bool]

_N_LIMITS = 8  # masks in another form: in a string, one comes again and again
_PREPARED = 8  # rows: those behind them are seldom read
_NEAR = 8.0  # below the best: who is further is seldom kept
_MOST_ASKED = 12  # questions: a mask takes less time than more of them
_MOST_REFUSED = 3  # of them: who likes what may not come likes more of it
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
# The most that eight logits may be, by the byte of their mask.
_MOST = np.where(_BITS, np.inf, -np.inf).astype(np.float32)


def only(n: int, *tokens: int) -> Mask:
    """These alone, of so many."""
    mask: Mask = np.zeros(-(-n // 8), np.uint8)
    for token in tokens:
        mask[token // 8] |= 1 << token % 8
    return mask


def everything(n: int) -> Mask:
    return np.packbits(np.ones(n, np.bool_), bitorder="little")


def members(mask: Mask) -> list[int]:
    """The tokens that may come."""
    found: list[int] = np.flatnonzero(np.unpackbits(mask, bitorder="little")).tolist()
    return found


# -- rows ---------------------------------------------------------------------------------------


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

    def drawn(self, j: int, history: Sequence[int], position: int) -> int:
        """The target's token of a row."""
        before = self._draft[:j]
        must = self._constraint.must(before)
        if must is not None:
            return must
        permits = partial(self._constraint.permits, before)
        found = draw_permitted(self._p[j], self._sampling, history, position, permits)
        return draw(self[j], self._sampling, history, position) if found is None else found

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


# -- without a mask -----------------------------------------------------------------------------


def draw_permitted(
    row: Row, sampling: Sampling, history: Sequence[int], position: int, permits: Permits
) -> int | None:
    """What would be drawn of the masked row, if few questions tell."""
    if sampling.typical_p < 1.0:
        return None
    logits = adjusted(row, sampling, history)
    if sampling.greedy:  # to look for the next one takes as long as a mask
        best = int(logits.argmax())
        return best if math.isfinite(logits.item(best)) and permits(best) else None
    few = permitted(logits, sampling.top_k, sampling.top_p, sampling.min_p, permits)
    return None if few is None else drawn_of(few, logits, sampling, position)


def permitted(
    logits: Logits, top_k: int, top_p: float, min_p: float, permits: Permits
) -> NDArray[np.int64] | None:
    """What the filters leave of the tokens that may come, in order of their numbers, maybe without
    some that min_p does not want. None: few questions do not tell."""
    best = float(logits.max())
    if (top_p == 1.0 and not min_p) or not math.isfinite(best):
        return None
    kept: list[int] = []
    edges = [0.0]  # the mass before each and after the last
    rest = mass(logits, best) if top_p < 1.0 else math.inf
    least = np.log(min_p) if min_p else -math.inf
    for token, may in _asked(logits, permits):
        logit = logits.item(token)
        if kept and top_p == 1.0 and logit < logits.item(kept[0]) + least:
            return np.sort(kept)
        weight = math.exp(logit - best)
        rest -= weight
        if not may:
            continue
        kept.append(token)
        edges.append(edges[-1] + weight)
        if len(kept) == top_k:  # nothing behind it counts
            rest = 0.0
        n = n_within(edges, edges[-1], edges[-1] + max(rest, 0.0), top_p)
        if n is not None:
            return np.sort(kept[: max(1, n)])
        if len(kept) == top_k:
            return np.sort(kept) if top_p == 1.0 else None
    return None


def _asked(logits: Logits, permits: Permits) -> Iterator[tuple[int, bool]]:
    """The likeliest tokens, equals by number, and whether each may come."""
    n_refused = 0
    for token in _best_first(logits):
        may = permits(token)
        yield token, may
        n_refused += not may
        if n_refused == _MOST_REFUSED:
            return


def _best_first(logits: Logits) -> Iterator[int]:
    """As many as are worth a question; the others are looked for only if the best is not enough."""
    best = int(logits.argmax())
    yield best
    near = np.flatnonzero(logits >= logits.item(best) - _NEAR)
    order = np.argsort(-logits[near], kind="stable")[1:_MOST_ASKED]
    yield from near[order].tolist()
