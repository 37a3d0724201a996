"""Masks: which tokens of a vocabulary may come, eight to a byte, the first in the lowest bit.

Knows nothing of grammars or logits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.uint8]


def packed(may: NDArray[np.bool_]) -> Mask:
    """One entry for each token, as a mask."""
    return np.packbits(may, bitorder="little")


def only(n: int, *tokens: int) -> Mask:
    """These alone, of so many."""
    mask: Mask = np.zeros(-(-n // 8), np.uint8)
    for token in tokens:
        mask[token // 8] |= 1 << token % 8
    return mask


def everything(n: int) -> Mask:
    return packed(np.ones(n, np.bool_))


def members(mask: Mask) -> list[int]:
    """The tokens that may come."""
    found: list[int] = np.flatnonzero(np.unpackbits(mask, bitorder="little")).tolist()
    return found
