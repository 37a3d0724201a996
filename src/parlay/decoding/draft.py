"""A draft: the tokens proposed for one round, and how sure the proposer was of each.

Knows nothing of where the tokens came from beyond the proposer's name.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Distribution:
    """Probabilities over the few tokens that survived the samplers; all others have none."""

    ids: NDArray[np.int64]
    probs: NDArray[np.float64]

    def of(self, token: int) -> float:
        """The probability of one token."""
        return float(self.probs[self.ids == token].sum())


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens proposed for one round; its length is the window."""

    tokens: tuple[int, ...]
    proposer: str
    # One per token: the proposer's estimate that it is right, given that those before it are.
    confidence: tuple[float, ...] = ()
    # What each token was drawn from (rejection sampling needs it); None: no chance was involved.
    q: tuple[Distribution, ...] | None = None


NO_DRAFT = Draft((), "none")
