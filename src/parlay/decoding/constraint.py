"""A constraint: which tokens may come next, where a grammar says so.

Knows nothing of grammars themselves. It acts on the target's logits before the draw, row by row
under the assumption that the draft holds so far: a row after a rejected token is never read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

# Which tokens of a vocabulary may come, eight to a byte, the first in the lowest bit.
Mask = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Forced:
    """What must come next."""

    tokens: tuple[int, ...] = ()
    sure: tuple[float, ...] = ()  # of each; 1: nothing else may come after those before it


NOTHING_FORCED = Forced()


class Constraint(Protocol):
    """The state of one sequence's grammar. Only `accept` moves it."""

    def must(self, draft: Sequence[int]) -> int | None:
        """The only token that may follow a draft that holds, if there is one."""

    def permits(self, draft: Sequence[int], token: int) -> bool:
        """Whether a token may follow a draft that holds."""

    def allowed(self, draft: Sequence[int]) -> Mask | None:
        """Which tokens may follow a draft; None where the draft itself may not come."""

    def n_obeying(self, draft: Sequence[int]) -> int:
        """How many leading tokens of a draft may come."""

    def forced(self, draft: Sequence[int] = ()) -> Forced:
        """The tokens that must follow a draft that holds, up to the next choice."""

    def accept(self, tokens: Sequence[int]) -> None:
        """These tokens were committed."""

    @property
    def complete(self) -> bool:
        """Whether the text so far may end here."""
