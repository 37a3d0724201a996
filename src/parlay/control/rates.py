"""How often drafted tokens are right: by how sure their proposer was, times how hard a text is.

Knows counts and confidences; neither prices nor purses.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

MODEL_RATE = 0.75  # of a draft model's tokens, before any was seen
FIRM, MEMORY = 6.0, 60.0  # tokens that a first belief counts for; the most that are remembered
CALM = 0.8  # of what a text has shown that counts after another round
HOPELESS = 0.03  # a token that is reached so seldom ends a draft

# Confidences that are told apart: finer where they are high, since long drafts live there.
EDGES = (0.05, 0.12, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.87, 0.92, 0.96, 0.98, 0.992, 0.998)
_CELL = [bisect_right(EDGES, i / 1000) for i in range(1001)]
BLIND = len(EDGES) + 1  # the cell of a token that is not drafted yet: nobody is sure of it


def cells_of(confidence: Sequence[float]) -> list[int]:
    """The cells that confidences fall into."""
    return [_CELL[int(sure * 1000)] for sure in confidence]


class Hardness:
    """How much likelier one text's tokens are to be wrong than rates say: a factor on the odds."""

    def __init__(self) -> None:
        self.seen = self.expected = 1.0

    def of(self, right: float) -> float:
        """The chance of a token in this text."""
        return right / (right + (1.0 - right) * self.seen / self.expected)

    def see(self, rates: Rates, cells: Sequence[int], n_right: int) -> None:
        """So many of these tokens came; the one after them, if there is one, was wrong."""
        tried, right = cells[: n_right + 1], rates.right
        expected = len(tried) - sum([right[cell] for cell in tried])
        self.seen = 1.0 + CALM * (self.seen - 1.0) + (len(tried) > n_right)
        self.expected = 1.0 + CALM * (self.expected - 1.0) + expected


class Rates:
    """How often one proposer's tokens are right, by cell; at first it is believed."""

    def __init__(self, kept: Sequence[Sequence[float]] | None = None) -> None:
        ends = (0.0, *EDGES, 1.0)
        self.right = [(low + high) / 2 for low, high in pairwise(ends)] + [MODEL_RATE]
        self.n = [FIRM] * len(self.right)
        if kept is not None and [len(each) for each in kept] == [len(self.right)] * 2:
            self.right, self.n = list(kept[0]), list(kept[1])

    def see(self, cells: Sequence[int], n_right: int, hard: Hardness) -> None:
        """Tokens up to the first wrong one: nothing is known of those after it. What the text's
        hardness explains is not learned, or an easy text would pass for a good proposer."""
        for i, cell in enumerate(cells[: n_right + 1]):
            self.n[cell] = min(self.n[cell] + 1.0, MEMORY)
            right = self.right[cell]
            right += ((i < n_right) - hard.of(right)) / self.n[cell]
            self.right[cell] = min(0.999, max(0.02, right))

    def chances(self, confidence: Sequence[float], hard: Hardness) -> list[float]:
        """That all tokens up to each are right; without those that are hardly ever reached."""
        found, alive, odds, right = [], 1.0, hard.seen / hard.expected, self.right
        for cell in cells_of(confidence):
            alive *= right[cell] / (right[cell] + (1.0 - right[cell]) * odds)
            if alive < HOPELESS:
                break
            found.append(alive)
        return found

    def blind(self, n: int, hard: Hardness) -> list[float]:
        """The same of a draft that is not begun, by the average of all places."""
        found, alive, rate = [], 1.0, hard.of(self.right[BLIND])
        for _ in range(n):
            alive *= rate
            if alive < HOPELESS:
                break
            found.append(alive)
        return found
