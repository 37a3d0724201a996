"""Random numbers that are a pure function of (seed, position, token).

They know no state: whoever asks for the same key gets the same number, with any drafter or none.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
# More than the smallest and largest Gumbel values of 52 random bits differ by: a candidate further
# than this below the best one can never win, so it needs no noise.
GUMBEL_SPAN = 41.0
# 52 bits and a half are exact in a double; 53 and a half would round up to 1, whose noise is
# infinite.
_STEP = 2.0**-52


def key(seed: int, position: int, stream: int = 0) -> int:
    """Mix seed, position and stream into one 64-bit key (splitmix64 on scalars)."""
    mixed = _scramble((seed & _MASK) ^ 0xA0761D6478BD642F)
    mixed = _scramble(mixed ^ ((position + 1) * _GOLDEN & _MASK))
    return _scramble(mixed ^ ((stream + 1) * 0xD1B54A32D192ED03 & _MASK))


def uniform(seed: int, position: int, stream: int) -> float:
    """One number in (0, 1)."""
    return ((_scramble(key(seed, position, stream)) >> 12) + 0.5) * _STEP


def gumbel(
    seed: int, position: int, ids: NDArray[np.int64], stream: int = 0
) -> NDArray[np.float64]:
    """One Gumbel number per token id: adding them to log-probabilities and taking the largest
    draws from the distribution."""
    bits = _scramble_array(
        ids.astype(np.uint64) * np.uint64(_GOLDEN) + np.uint64(key(seed, position, stream))
    )
    u = ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * _STEP
    return np.asarray(-np.log(-np.log(u)), dtype=np.float64)


def _scramble(x: int) -> int:
    x = (x + _GOLDEN) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def _scramble_array(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))
