"""Glances: whether texts that nobody searches begin to repeat themselves.

Knows tokens only. Where searching takes too much of a fast pass, rounds go without it; a guess that
is made while a device computes takes nobody's time, and tells when to search again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Guesses in a row that must be right: one or two are right in any text.
_ROW = 3


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

    def saw(self, seq_id: int, tokens: Sequence[int], expected: frozenset[int]) -> bool:
        """The text so far and what may follow it; whether it has gone on as expected for long."""
        last, n = self._last.get(seq_id), len(tokens)
        right = last is not None and last.n_tokens == n - 1 and tokens[-1] in last.expected
        n_right = last.n_right + 1 if right and last is not None else 0
        self._last[seq_id] = _Glance(n, expected, n_right)
        return n_right >= _ROW
