"""A constraint: which tokens may come next, where a grammar says so.

Knows nothing of grammars themselves. It acts on the target's logits before the draw, row by row
under the assumption that the draft holds so far: a row after a rejected token is never read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from parlay.decoding.mask import Mask
from parlay.decoding.spacing import Spacing


@dataclass(frozen=True, slots=True)
class Forced:
    """What must come next, as far as white space goes by habit."""

    tokens: tuple[int, ...] = ()
    sure: tuple[float, ...] = ()  # of each; 1: nothing else may come after those before it


NOTHING_FORCED = Forced()


class Constraint(Protocol):
    """The state of one sequence's grammar."""

    def must(self, draft: Sequence[int]) -> int | None:
        """The only token that may follow a draft that holds, if there is one; the state stays."""

    def permits(self, draft: Sequence[int], token: int) -> bool:
        """Whether a token may follow a draft that holds; the state stays as it was."""

    def accept(self, tokens: Sequence[int]) -> None:
        """These tokens were committed."""

    def allowed(self, draft: Sequence[int]) -> Mask | None:
        """Which tokens may follow a draft; None where the draft itself may not come."""

    def n_obeying(self, draft: Sequence[int]) -> int:
        """How many leading tokens of a draft may come."""

    def forced(self, spacing: Spacing, draft: Sequence[int] = ()) -> Forced:
        """The tokens that must follow a draft that holds, white space by habit."""

    def prepare(self, spacing: Spacing) -> None:
        """Compute now what will be forced once the string ends that the text is in."""

    @property
    def complete(self) -> bool:
        """Whether the text so far may end here."""
