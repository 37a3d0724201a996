"""From a row of logits to one token: bias, penalties, filters, temperature, draw.

Knows nothing of drafts. The same row, history, seed and position always give the same token.

The order is llama.cpp's: logit_bias, penalties (repeat, frequency, presence), top_k, typical_p,
top_p, min_p, temperature, draw. Each filter sees what the one before it left over, renormalised;
each keeps at least one token.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parlay.decoding.noise import exceeds, gumbel
from parlay.errors import BadRequest, DecodeError, NothingFollows, ParlayError
from parlay.option_types import check_options

Row = NDArray[np.float32]
Logits = NDArray[np.floating[Any]]

_RANGES = {
    "temperature": (0.0, 100.0),
    "top_k": (0, 1 << 31),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "typical_p": (0.0, 1.0),
    "repeat_penalty": (1e-3, 100.0),
    "presence_penalty": (-100.0, 100.0),
    "frequency_penalty": (-100.0, 100.0),
    "penalty_last_n": (0, 1 << 31),
    "seed": (0, (1 << 64) - 1),
}
_COLD = 1e-9
_MANY = 1024  # candidates: of fewer, all have their noise computed
_FAR = 8.0  # below the best score: to win from there takes noise that one token in a thousand has
_NEAR = 8.0  # below the best logit: who is further is seldom kept by a filter
_SLACK = 1e-5  # of masses: single precision, summed in pairs, is ten times as exact


def _derived() -> bool:
    """A field that follows from the others."""
    found: bool = field(init=False, repr=False, compare=False)
    return found


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the target's token is drawn. The default is greedy: its most likely token."""

    temperature: float = 0.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_last_n: int = 64  # how far back, prompt included, the penalties look
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0
    # Asked for at every row, and so worked out once.
    greedy: bool = _derived()  # so cold that the likeliest token always wins
    penalised: bool = _derived()
    # Greedy, and no filter that could drop the most likely token: typical_p alone can.
    unfiltered: bool = _derived()
    untouched: bool = _derived()  # whether the most likely token is simply the largest logit
    lowered: bool = _derived()  # the same, unless that token has a bias: no bias raises one

    def __post_init__(self) -> None:
        self._check()
        penalties = self.repeat_penalty, self.presence_penalty, self.frequency_penalty
        # Logits over less would leave the floats.
        greedy, penalised = self.temperature < _COLD, penalties != (1, 0, 0)
        unfiltered = greedy and self.typical_p == 1.0
        object.__setattr__(self, "greedy", greedy)
        object.__setattr__(self, "penalised", penalised)
        object.__setattr__(self, "unfiltered", unfiltered)
        lowered = unfiltered and not penalised and max(self.logit_bias.values(), default=0) <= 0
        object.__setattr__(self, "untouched", lowered and not self.logit_bias)
        object.__setattr__(self, "lowered", lowered)

    def _check(self) -> None:
        check_options(self)
        for item in fields(self):
            if item.name in _RANGES:
                _check_range(item.name, getattr(self, item.name))
        for token, bias in self.logit_bias.items():
            if token < 0:
                raise BadRequest(f"logit_bias names token {token}; use ids of the vocabulary")
            if not bias < np.inf:  # -inf forbids a token; NaN and inf leave nothing to draw from
                raise BadRequest(f"logit_bias of token {token} is {bias}; give a finite number")

    @property
    def biases(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """`logit_bias` as two arrays."""
        n = len(self.logit_bias)
        ids = np.fromiter(self.logit_bias.keys(), dtype=np.int64, count=n)
        return ids, np.fromiter(self.logit_bias.values(), dtype=np.float64, count=n)


def _check_range(name: str, value: float) -> None:
    low, high = _RANGES[name]
    if not low <= value <= high:  # also refuses NaN
        raise BadRequest(f"{name} is {value}; give a value from {low:g} to {high:g}")


def draw(row: Row, sampling: Sampling, history: Sequence[int], position: int) -> int:
    """The token of this row; `history` is the text before it, `position` its place in it."""
    if sampling.untouched:
        return likeliest(row)
    if sampling.lowered and (token := likeliest(row)) not in sampling.logit_bias:
        return token  # without a copy of the row, which takes ten times as long
    if sampling.unfiltered:
        return likeliest(adjusted(row, sampling, history))
    ids, scores = candidates(row, sampling, history)
    if sampling.greedy:
        return int(ids[int(scores.argmax())])
    return _gumbel_draw(ids, scores, sampling.seed, position)


def likeliest(logits: NDArray[np.floating[Any]]) -> int:
    """The token with the largest logit."""
    token = int(logits.argmax())
    if not logits.item(token) > -math.inf:  # everything is forbidden, or not a number
        raise _nothing(logits)
    return token


def _nothing(logits: NDArray[np.floating[Any]]) -> ParlayError:
    if np.isnan(logits).any():
        return DecodeError("the model computed logits that are no numbers", code=-1)
    return NothingFollows("no token may come next; loosen the grammar or logit_bias")


def _gumbel_draw(
    ids: NDArray[np.int64], scores: NDArray[np.float64], seed: int, position: int
) -> int:
    """The token whose score and noise are most together."""
    if len(ids) > _MANY:
        may = _within_reach(ids, scores, seed, position)
        ids, scores = ids[may], scores[may]
    return int(ids[int((scores + gumbel(seed, position, ids)).argmax())])


def _within_reach(
    ids: NDArray[np.int64], scores: NDArray[np.float64], seed: int, position: int
) -> NDArray[np.int64]:
    """Who may win. Only a few of those far below the best have noise enough, which their random
    bits tell: the others' is not computed."""
    edge = scores.max() - _FAR
    near = scores >= edge
    close = np.flatnonzero(near)
    best = (scores[close] + gumbel(seed, position, ids[close])).max()
    return np.flatnonzero(near | exceeds(seed, position, ids, best - edge))


def adjusted(row: Row, sampling: Sampling, history: Sequence[int]) -> Logits:
    """A copy of the row with bias and penalties applied, or the row where there are none."""
    if not sampling.logit_bias and not sampling.penalised:
        return row
    logits = row.astype(np.float64)
    if sampling.logit_bias:
        ids, biases = sampling.biases
        known = ids < len(logits)  # a drafter may lack the last ids
        logits[ids[known]] += biases[known]
    if sampling.penalised and sampling.penalty_last_n > 0:
        _penalise(logits, sampling, history[-sampling.penalty_last_n :])
    return logits


def _penalise(logits: NDArray[np.float64], sampling: Sampling, recent: Sequence[int]) -> None:
    # A drafter may lack the last ids of the target's padded vocabulary.
    counts = Counter(token for token in recent if token < len(logits))
    ids = np.fromiter(counts.keys(), dtype=np.int64, count=len(counts))
    n = np.fromiter(counts.values(), dtype=np.float64, count=len(counts))
    values = logits[ids]
    # A penalty must push down whichever the sign: divide what is positive, multiply the rest.
    factor = sampling.repeat_penalty
    values = np.where(values > 0, values / factor, values * factor)
    logits[ids] = values - n * sampling.frequency_penalty - sampling.presence_penalty


def candidates(
    row: Row, sampling: Sampling, history: Sequence[int]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The tokens that survive every filter, and their logits over the temperature."""
    logits = adjusted(row, sampling, history)
    if sampling.typical_p == 1.0:
        few = shortlist(logits, sampling.top_k, sampling.top_p)
        if few is not None:
            return _heated(few, logits[few].astype(np.float64), sampling)
    ids = _top_k(logits, sampling.top_k)
    if not len(ids):
        raise _nothing(logits)
    scores = logits[ids].astype(np.float64)
    if sampling.typical_p < 1.0:
        ids, scores = _typical_p(ids, scores, sampling.typical_p)
    if sampling.top_p < 1.0:
        ids, scores = _top_p(ids, scores, sampling.top_p)
    return _heated(ids, scores, sampling)


def shortlist(logits: Logits, top_k: int, top_p: float) -> NDArray[np.int64] | None:
    """What top_k and top_p leave, in order of their numbers, found best first. None: it takes the
    whole row to tell."""
    best = float(logits.max())
    if (top_p == 1.0 and not top_k) or not math.isfinite(best):
        return None
    tokens = np.flatnonzero(logits >= best - _NEAR)
    tokens = tokens[np.argsort(-logits[tokens], kind="stable")]
    if top_k > len(tokens):
        return None
    if top_k:
        tokens = tokens[:top_k]
    if top_p == 1.0:
        return np.sort(tokens)
    edges = np.cumsum(np.exp(logits[tokens].astype(np.float64) - best))
    whole = float(edges[-1]) if top_k else mass(logits, best)
    n = n_within([0.0, *edges.tolist()], whole, whole, top_p)
    return None if n is None else np.sort(tokens[: max(1, n)])


def n_within(edges: list[float], least: float, most: float, p: float) -> int | None:
    """How many tokens have less than a share p of the whole before them, given the mass before
    each and after the last, and of the whole. None: that or rounding could change it."""
    sure = bisect_left(edges, p * least * (1 - 2 * _SLACK))
    perhaps = bisect_left(edges, p * most * (1 + _SLACK))
    return sure if sure == perhaps < len(edges) else None


def mass(logits: Logits, best: float) -> float:
    """Of all tokens together, at most, where the best has 1."""
    weights = logits - logits.dtype.type(best)
    np.exp(weights, out=weights)
    return float(weights.sum()) * (1 + _SLACK)


def drawn_of(few: NDArray[np.int64], logits: Logits, sampling: Sampling, position: int) -> int:
    """The token drawn of what filters have left of a row, but for min_p."""
    ids, scores = _heated(few, logits[few].astype(np.float64), sampling)
    return _gumbel_draw(ids, scores, sampling.seed, position)


def _heated(
    ids: NDArray[np.int64], scores: NDArray[np.float64], sampling: Sampling
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Those that min_p leaves, over the temperature."""
    if sampling.min_p > 0.0:
        keep = scores >= scores.max() + np.log(sampling.min_p)
        ids, scores = ids[keep], scores[keep]
    return ids, scores if sampling.greedy else scores / sampling.temperature


def _top_k(logits: Logits, k: int) -> NDArray[np.int64]:
    if 0 < k < len(logits):
        # Ties at the edge are cut by id, so that the set never depends on the partition's order.
        edge = np.partition(logits, len(logits) - k)[len(logits) - k]
        above = np.flatnonzero(logits > edge)
        tied = np.flatnonzero(logits == edge)[: k - len(above)]
        kept: NDArray[np.int64] = np.sort(np.concatenate([above, tied]))
        return kept[logits[kept] > -np.inf]
    return np.flatnonzero(logits > -np.inf)


def _top_p(
    ids: NDArray[np.int64], scores: NDArray[np.float64], p: float
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The likeliest tokens until they have mass p. All whose chance is below an equal part of the
    rest have less than the rest together, so none of them is needed, nor sorted."""
    probs = _softmax(scores)
    some = np.flatnonzero(probs >= (1.0 - p) / len(probs))
    some = some[np.argsort(-scores[some], kind="stable")]
    before = np.cumsum(probs[some]) - probs[some]
    kept = np.sort(some[: max(1, int((before < p).sum()))])
    return ids[kept], scores[kept]


def _typical_p(
    ids: NDArray[np.int64], scores: NDArray[np.float64], p: float
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Keep the tokens whose surprise is closest to the expected one, up to mass p."""
    probs = _softmax(scores)
    surprise = -np.log(np.maximum(probs, 1e-300))
    order = np.argsort(np.abs(surprise - (probs * surprise).sum()), kind="stable")
    mass = np.cumsum(probs[order])
    kept = np.sort(order[: int(np.searchsorted(mass, p)) + 1])
    return ids[kept], scores[kept]


def _softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    weights = np.exp(scores - scores.max())
    return np.asarray(weights / weights.sum(), dtype=np.float64)
