"""Prices of both models at once: a pass beside a busy drafter, a drafter's token beside a pass.

Knows rows, factors and seconds; what drafting ahead is worth at them is `foresight.py`'s affair.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

_MAX_ROWS = 512
# What one observation moves; a token beside a pass is told of less exactly than a pass.
_RATE = 0.05


class Both:
    """By rows of the pass, lines between those that were measured; the same beyond them."""

    __slots__ = ("_known", "slowdown", "token_s")

    def __init__(self, slowdown: Mapping[int, float], token_s: Mapping[int, float]) -> None:
        """How many times as long a pass takes, and the seconds of a token meanwhile."""
        if not slowdown or slowdown.keys() != token_s.keys():
            raise ValueError("as many passes as tokens, and at least one")
        if min(*slowdown, *slowdown.values(), *token_s.values()) <= 0:
            raise ValueError("rows, factors and milliseconds must be positive")
        self._known = sorted(slowdown)
        self.slowdown = _lines(slowdown)
        self.token_s = _lines(token_s)

    def n_beside(self, rows: int, pass_s: float) -> float:
        """Tokens that are drafted beside a pass which takes so long alone."""
        return pass_s * self.slowdown[rows] / self.token_s[rows]

    def observe_pass(self, rows: int, surprise: float) -> None:
        """A pass beside a drafter took by so much more than it should have."""
        self.slowdown[rows] = max(1.0, self.slowdown[rows] * (1.0 + _RATE * surprise))

    def observe_token(self, rows: int, seconds: float) -> None:
        """A token beside such a pass took so long."""
        if rows > _MAX_ROWS:  # it read a prompt, too
            return
        self.token_s[rows] += _RATE * (seconds - self.token_s[rows])

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Both:
        slowdown = {int(rows): float(factor) for rows, factor in record["slowdown"].items()}
        return cls(slowdown, {int(rows): float(ms) / 1e3 for rows, ms in record["ms"].items()})

    def to_dict(self, pace: float = 1.0) -> dict[str, Any]:
        """The JSON form: the rows that were measured, as they are now, on a machine that is so many
        times as slow."""
        return {
            "slowdown": {str(b): round(self.slowdown[b], 4) for b in self._known},
            "ms": {str(b): round(1e3 * pace * self.token_s[b], 6) for b in self._known},
        }


def _lines(points: Mapping[int, float]) -> list[float]:
    rows = sorted(points)
    found = np.interp(range(_MAX_ROWS + 1), rows, [points[b] for b in rows])
    return [float(value) for value in found]
