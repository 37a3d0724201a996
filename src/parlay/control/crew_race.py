"""A race of two crews: who makes passes faster, told by passes made in turn.

Knows seconds and shapes; nothing of loads or of who may race. What disturbs the machine meanwhile
disturbs both, and passes of two shapes are never compared.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from statistics import fmean, variance

from parlay.control.crew import Crew

# Passes a turn; the first changes the threads and does not count. Turns of each before a verdict,
# and after which there is one in any case.
N_PASSES, _N_TURNS, _MOST_TURNS = 3, 3, 8
# The challenger must be faster by so much, and by so many standard errors: on a busy machine one
# pass takes twice as long as the next.
_BETTER, _SURE = 0.92, 1.5

_Times = tuple[list[float], list[float]]  # of the challenger and of the chosen crew


@dataclass(slots=True)
class Race:
    """The challenger and the chosen crew in turn, the challenger first."""

    challenger: Crew
    n_made: int = 0
    _found: dict[Hashable, _Times] = field(default_factory=dict)  # passes that count, by shape

    @property
    def challenged(self) -> bool:
        """Whether the challenger makes the next pass."""
        return self.n_made // N_PASSES % 2 == 0

    def add(self, shape: Hashable, seconds: float) -> None:
        if self.n_made % N_PASSES:
            self._found.setdefault(shape, ([], []))[0 if self.challenged else 1].append(seconds)
        self.n_made += 1

    @property
    def is_over(self) -> bool:
        n_turns, rest = divmod(self.n_made, 2 * N_PASSES)
        return rest == 0 and n_turns >= _N_TURNS and (self._is_clear or n_turns >= _MOST_TURNS)

    @property
    def won(self) -> bool:
        """Whether the challenger was faster, and not by chance."""
        over = self.over
        return over is not None and over < _BETTER and self._is_clear

    @property
    def over(self) -> float | None:
        """The challenger's time over the chosen crew's, on shapes that both have made."""
        both = self._both
        if not both:
            return None
        logs = [math.log(fmean(mine) / fmean(others)) for mine, others in both]
        weights = _weights(both)
        return math.exp(sum(w * log for w, log in zip(weights, logs, strict=True)) / sum(weights))

    @property
    def _is_clear(self) -> bool:
        over = self.over
        return over is not None and abs(math.log(over)) > _SURE * self._error

    @property
    def _error(self) -> float:
        """The standard error of the logarithm of `over`."""
        both = self._both
        weights = _weights(both)
        parts = [1 / len(mine) + 1 / len(others) for mine, others in both]
        total = sum(w * w * part for w, part in zip(weights, parts, strict=True))
        return math.sqrt(_spread(both) * total) / sum(weights)

    @property
    def _both(self) -> list[_Times]:
        return [times for times in self._found.values() if all(times)]


def _weights(both: list[_Times]) -> list[int]:
    return [min(len(mine), len(others)) for mine, others in both]


def _spread(both: list[_Times]) -> float:
    """How far passes of one crew and one shape are apart, as a squared share of their mean."""
    each = [times for pair in both for times in pair if len(times) > 1]
    if not each:
        return 0.0
    found = sum((len(times) - 1) * variance(times) / fmean(times) ** 2 for times in each)
    return found / sum(len(times) - 1 for times in each)
