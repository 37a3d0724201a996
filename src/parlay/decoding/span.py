"""A span: a run of one sequence's tokens in one pass, and the model that passes run on.

Knows neither drafts nor llama.cpp; `Passes` is what a target or a drafter must be able to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

_BLOCK = 256  # tokens compared at once


@dataclass(slots=True)  # every drafted token has one, and a frozen one takes four times as long
class Span:
    """Tokens of one sequence for one pass; logits are read for the last `n_logits` of them.

    Padding comes after those: tokens that only give the pass its shape and are taken back.
    """

    seq_id: int
    start: int  # position of the first token
    tokens: Sequence[int]
    n_logits: int
    n_padding: int = 0
    # Part of a prompt that is always read in this very pass: it may round otherwise than others.
    apart: bool = False

    @property
    def read(self) -> slice:
        """Which of its rows give logits."""
        end = len(self.tokens) - self.n_padding
        return slice(end - self.n_logits, end)


class Saved(Protocol):
    """A sequence put away."""

    @property
    def n_bytes(self) -> int:
        """Bytes of RAM it takes."""

    def reusable(self, length: int) -> int:
        """How many of its first `length` tokens can be kept."""


def pad(tokens: Sequence[int], width: int) -> list[int]:
    """So many rows. The last token again: in a mixture it asks for no other expert's weights."""
    return [*tokens, *[tokens[-1]] * (width - len(tokens))]


class Cached(Protocol):
    """Holds what was read of several sequences."""

    @property
    def context_size(self) -> int:
        """Tokens that each sequence can hold."""

    def truncate(self, seq_id: int, length: int) -> None:
        """Forget everything from position `length` on."""

    def clear(self, seq_id: int) -> None:
        """Forget a sequence."""


class Passes(Cached, Protocol):
    """A model that passes run on, and cutting back what they read."""

    @property
    def n_vocab(self) -> int:
        """Columns of a row of logits."""

    @property
    def sample(self) -> Sequence[int]:
        """Tokens of a real text; empty where there is none to be had."""

    @property
    def steady(self) -> bool:
        """Whether a pass costs more when its shape differs from the last one (GPU graphs)."""

    @property
    def free_rollback(self) -> int:
        """Tokens of a draft that are taken back at no cost; beyond, it takes copies and passes."""

    def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
        """One pass over all spans; per span its `n_logits` rows, valid until the next pass."""

    def length(self, seq_id: int) -> int:
        """Tokens of the sequence in the cache."""

    def reusable(self, seq_id: int, length: int) -> int:
        """How many of the first `length` cached tokens can be kept."""

    def mark(self, seq_id: int, *, lasting: bool = False) -> None:
        """Make it possible to come back to where the sequence is now; a lasting mark takes RAM."""


class Loaded(Cached, Protocol):
    """A model with such a cache, which it may shift and must free."""

    @property
    def busy_s(self) -> float:
        """Seconds spent inside the model so far."""

    @property
    def can_shift(self) -> bool:
        """Whether `shift` works; without it, what is left of a text must be read again."""

    def shift(self, seq_id: int, keep: int, discard: int) -> None:
        """Drop positions [keep, keep + discard) and move what follows down."""

    def close(self) -> None:
        """Free it."""


class LoadedPasses(Passes, Loaded, Protocol):
    """A model with a cache of several sequences, whose texts are kept and put away."""

    def start(self, spans: Sequence[Span]) -> None:
        """One pass, maybe still running when this comes back."""

    def fetch(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
        """The rows of the pass that was started last; waits for it."""

    def save(self, seq_id: int) -> Saved:
        """A copy of a sequence in RAM; what stays of it may be shorter."""

    def restore(self, seq_id: int, saved: Any) -> None:
        """Put what `save` gave into a place, whatever was there before."""


def nothing() -> None:
    """What there is to do meanwhile, unless somebody has something."""


class Target(LoadedPasses, Protocol):
    """The model whose text is made. What its passes read of prompts need not be waited for."""

    def settle(self) -> None:
        """Wait until nothing runs."""


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common start."""
    n, most = 0, min(len(a), len(b))
    if a[:most] == b[:most]:  # as drafts that hold are
        return most
    while n + _BLOCK <= most and a[n : n + _BLOCK] == b[n : n + _BLOCK]:
        n += _BLOCK
    while n < most and a[n] == b[n]:
        n += 1
    return n
