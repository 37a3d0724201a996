"""Glances: whether texts that nobody searches begin to repeat themselves.

Knows tokens only. Where searching takes too much of a fast pass, rounds go without it; a guess that
is made while a device computes takes nobody's time, and tells when to search again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")
# Of many texts so many are glanced at, for so many rounds, before it is others' turn: sixteen
# streams' guesses would take as long as what a device computes.
_AT_ONCE, _ROUNDS = 2, 8
# Guesses in a row that must be right: one or two are right in any text. Where to search takes a
# quarter of a pass, as for many texts, more of them: their drafts are long enough to be bet on.
_ROW, _ROW_OF_MANY = 3, 6


@dataclass(frozen=True, slots=True)
class _Glance:
    """What was expected of one text, once it had so many tokens."""

    n_tokens: int
    expected: frozenset[int]
    n_right: int  # guesses before it, in a row


class Glances:
    """The last one of every slot."""

    def __init__(self) -> None:
        self._last: dict[int, _Glance] = {}
        self._n_rounds = 0
        self._row = _ROW

    def whose_turn(self, texts: Sequence[T]) -> Sequence[T]:
        """Called once a round."""
        self._n_rounds += 1
        self._row = _ROW if len(texts) <= _AT_ONCE else _ROW_OF_MANY
        first = self._n_rounds // _ROUNDS * _AT_ONCE % max(1, len(texts))
        return texts[first : first + _AT_ONCE]

    def saw(self, seq_id: int, tokens: Sequence[int], expected: frozenset[int]) -> bool:
        """The text so far and what may follow it; whether it has gone on as expected for long."""
        last, n = self._last.get(seq_id), len(tokens)
        right = last is not None and last.n_tokens == n - 1 and tokens[-1] in last.expected
        n_right = last.n_right + 1 if right and last is not None else 0
        self._last[seq_id] = _Glance(n, expected, n_right)
        return n_right >= self._row
