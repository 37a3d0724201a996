"""Random numbers that are a pure function of (seed, position, token).

They know no state: whoever asks for the same key gets the same number, with any drafter or none.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
# 52 bits and a half are exact in a double; 53 and a half would round up to 1, whose noise is
# infinite.
_STEP = 2.0**-52
_SLACK = 1 << 14  # of 64 bits, for those that were cut and for rounding


def key(seed: int, position: int) -> int:
    """Mix seed and position into one 64-bit key (splitmix64 on scalars)."""
    mixed = _scramble((seed & _MASK) ^ 0xA0761D6478BD642F)
    mixed = _scramble(mixed ^ ((position + 1) * _GOLDEN & _MASK))
    return _scramble(mixed ^ 0xD1B54A32D192ED03)


def gumbel(seed: int, position: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """One Gumbel number per token id: adding them to log-probabilities and taking the largest
    draws from the distribution."""
    bits = _bits(seed, position, ids)
    u = ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * _STEP
    return np.asarray(-np.log(-np.log(u)), dtype=np.float64)


def exceeds(seed: int, position: int, ids: NDArray[np.int64], least: float) -> NDArray[np.bool_]:
    """Whose Gumbel number is at least so much: in doubt, yes. It takes no logarithms."""
    rare = -math.expm1(-math.exp(-least))  # how many have as much
    bound = max(0, int((1.0 - rare * (1 + 1e-4)) * (1 << 64)) - _SLACK)
    return np.asarray(_bits(seed, position, ids) >= np.uint64(bound))


def _bits(seed: int, position: int, ids: NDArray[np.int64]) -> NDArray[np.uint64]:
    """64 random ones of each token id."""
    keys = ids.astype(np.uint64)
    keys *= np.uint64(_GOLDEN)
    keys += np.uint64(key(seed, position))
    return _scramble_array(keys)


def _scramble(x: int) -> int:
    x = (x + _GOLDEN) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def _scramble_array(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """In place: a vocabulary of them is larger than a core's cache."""
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x
