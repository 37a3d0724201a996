"""Hidden states: what a pass of the target leaves behind, and what some drafters read.

Knows neither drafts nor llama.cpp; `StateModel` is what a drafter that reads states must be able
to do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from parlay.decoding.span import Loaded, Span

States = NDArray[np.float32]  # one row per token

# Told after every pass: its spans, and the states of each span's tokens, free to be kept.
Listener = Callable[[Sequence[Span], Sequence[States]], None]


@dataclass(frozen=True, slots=True)
class Fed:
    """Rows of one sequence for a drafter: states, beside tokens where it wants both."""

    seq_id: int
    start: int  # position of the first row
    states: States
    tokens: Sequence[int] = ()  # none: the drafter takes states alone
    n_logits: int = 0  # logits are read for so many of the last rows


class StateModel(Loaded, Protocol):
    """A drafter with a cache of its own that reads the target's states."""

    @property
    def layers(self) -> tuple[int, ...]:
        """The target's layers whose inputs it reads; one past the last: what that one gives."""

    @property
    def width(self) -> int:
        """Numbers in the target's states of one token, all layers together."""

    def read(self, fed: Sequence[Fed]) -> list[tuple[NDArray[np.float32], States]]:
        """One pass: per item its logits and the drafter's own states, for its last `n_logits` rows.

        Logits are valid until the next pass."""

    def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
        """One pass over tokens alone; per span the logits of its last `n_logits` rows."""

    def encode(self, states: States) -> States:
        """The target's states as the drafter wants them fed; most want them as they are."""


class ChainModel(StateModel, Protocol):
    """One with several layers, of which each pass goes through one."""

    @property
    def n_links(self) -> int:
        """How many there are."""

    def use(self, link: int) -> None:
        """Let the coming passes go through one of them, from 0."""


class BorrowingModel(StateModel, Protocol):
    """One without a cache of its own: it reads the target's."""

    def length(self, seq_id: int) -> int:
        """Tokens of a sequence in the target's cache."""
