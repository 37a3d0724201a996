"""The few tokens that filters leave of a row, found best first and without the whole vocabulary.

Knows logits, filters and a question that tells of each token whether it may come; nothing of
grammars or noise. What it finds is what the filters leave of the masked row, to the token: where
that hangs on the mass of tokens nobody asked about, or on rounding, it finds nothing.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.floating[Any]]
Permits = Callable[[int], bool]

_NEAR = 8.0  # below the best: who is further is seldom kept
_MOST_ASKED = 12  # questions: a mask takes less time than more of them
_MOST_REFUSED = 3  # of them: who likes what may not come likes more of it
_SLACK = 1e-5  # of masses: single precision, summed in pairs, is ten times as exact


def likeliest_permitted(logits: Logits, permits: Permits) -> int | None:
    """The likeliest token, if it may come: to look for the next one takes as long as a mask."""
    best = int(logits.argmax())
    return best if math.isfinite(logits.item(best)) and permits(best) else None


def shortlist(logits: Logits, top_k: int, top_p: float) -> NDArray[np.int64] | None:
    """What top_k and top_p leave, in order of their numbers. None: it takes the whole row to
    tell."""
    best = float(logits.max())
    if (top_p == 1.0 and not top_k) or not math.isfinite(best):
        return None
    tokens = np.flatnonzero(logits >= best - _NEAR)
    tokens = tokens[np.argsort(-logits[tokens], kind="stable")]
    if top_k > len(tokens):
        return None
    if top_k:
        tokens = tokens[:top_k]
    edges = np.cumsum(np.exp(logits[tokens].astype(np.float64) - best))
    mass = float(edges[-1]) if top_k else _mass(logits, best)
    if top_p == 1.0:
        return np.sort(tokens)
    n = _n_within([0.0, *edges.tolist()], mass, mass, top_p)
    return None if n is None else np.sort(tokens[: max(1, n)])


def permitted(
    logits: Logits, top_k: int, top_p: float, min_p: float, permits: Permits
) -> NDArray[np.int64] | None:
    """The same of the tokens that may come, without some that min_p does not want. None: few
    questions do not tell."""
    best = float(logits.max())
    if (top_p == 1.0 and not min_p) or not math.isfinite(best):
        return None
    kept: list[int] = []
    edges = [0.0]  # the mass before each and after the last
    rest = _mass(logits, best) if top_p < 1.0 else math.inf
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
        n = _n_within(edges, edges[-1], edges[-1] + max(rest, 0.0), top_p)
        if n is not None:
            return np.sort(kept[: max(1, n)])
        if len(kept) == top_k:
            return np.sort(kept) if top_p == 1.0 else None
    return None


def _asked(logits: Logits, permits: Permits) -> Iterator[tuple[int, bool]]:
    """The likeliest tokens, and whether each may come."""
    n_refused = 0
    for token in _best_first(logits):
        may = permits(token)
        yield token, may
        n_refused += not may
        if n_refused == _MOST_REFUSED:
            return


def _best_first(logits: Logits) -> Iterator[int]:
    """The likeliest tokens, equals by number, as many as are worth a question; none of a row with
    others than numbers in it."""
    best = int(logits.argmax())
    if not math.isfinite(logits.item(best)):
        return
    yield best
    near = np.flatnonzero(logits >= logits.item(best) - _NEAR)
    order = np.argsort(-logits[near], kind="stable")[1:_MOST_ASKED]
    yield from near[order].tolist()


def _n_within(edges: list[float], least: float, most: float, p: float) -> int | None:
    """How many tokens have less than a share p of the whole before them, given the mass before
    each and after the last, and of the whole. None: that or rounding could change it."""
    sure = bisect_left(edges, p * least * (1 - 2 * _SLACK))
    perhaps = bisect_left(edges, p * most * (1 + _SLACK))
    return sure if sure == perhaps < len(edges) else None


def _mass(logits: Logits, best: float) -> float:
    """Of all tokens together, at most, where the best has 1."""
    weights = logits - logits.dtype.type(best)
    np.exp(weights, out=weights)
    return float(weights.sum()) * (1 + _SLACK)
