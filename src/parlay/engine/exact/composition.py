"""Composes passes: who shares one, and how many rows each has so that all stay in the exact class.

Knows lengths, rows and prices; nothing of drafts or models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from parlay.engine.exact.exactness import ExactClass


@dataclass(frozen=True, slots=True)
class Frame:
    """What a pass leaves to those who bet on it."""

    window: int | None = None  # the largest; None: any
    floor: int = 1  # rows of each sequence that it is padded to at least


ANY_SHAPE = Frame()


class Placed(Protocol):
    """Something with a place in the cache."""

    @property
    def seq_id(self) -> int: ...

    @property
    def n_cached(self) -> int: ...


AnyPlaced = TypeVar("AnyPlaced", bound=Placed)
# How fast so many sequences decode when they share a pass, in any unit.
Rate = Callable[[int], float]
# The class with what is found to hold for sequences, given by id and length, that nobody tried yet.
Scout = Callable[[ExactClass, Sequence[tuple[int, int]]], ExactClass]


def _stay(found: ExactClass, _placed: Sequence[tuple[int, int]]) -> ExactClass:
    return found


class Composition:
    """The passes of one engine, inside one class."""

    def __init__(
        self,
        found: ExactClass,
        context_size: int,
        rate: Rate = float,
        scout: Scout = _stay,
        cost_percent: float | None = None,
    ) -> None:
        """`rate`: until prices are known, the more in a pass the better. `cost_percent`: of the
        speed that staying in the class costs, as answers tell it."""
        self.cost_percent = cost_percent
        self.found = found
        self._size = context_size
        self._rate = rate
        self._scout = scout
        self._tried: set[tuple[int, frozenset[int]]] = set()
        self._order: dict[int, Sequence[int]] = {}

    @property
    def name(self) -> str:
        return self.found.name

    @property
    def floor(self) -> int:
        """Rows that a pass may have to be padded to."""
        return self.found.floor

    def is_full(self, length: int) -> bool:
        """Whether not even a padded plain pass fits after a text of this length."""
        return length + self.floor > self._size

    def groups(self, placed: Sequence[AnyPlaced]) -> list[list[AnyPlaced]]:
        """Those who decode, parted into passes of their class."""
        left = sorted(placed, key=lambda one: one.seq_id)
        for one in left:
            if not self.found.is_probed(1, [one.n_cached]):
                self._look([one])
        found = []
        while left:
            n = self._n_first(left)
            found.append(left[:n])
            left = left[n:]
        return found

    def _n_first(self, left: Sequence[Placed]) -> int:
        """How many of the first ones share a pass: as many as decode fastest."""
        for n in self._fastest(_n_neighbours(left)):
            self._look(left[:n])
            if self.rows(left[:n]):
                return n
        return 1

    def _fastest(self, most: int) -> Sequence[int]:
        """Numbers of sequences up to `most`, those that decode fastest together first."""
        if most not in self._order:
            self._order[most] = sorted(range(1, most + 1), key=self._rate, reverse=True)
        return self._order[most]

    def _look(self, placed: Sequence[Placed]) -> None:
        """Where so many, or texts so long, were never tried in the class, try them there, once."""
        lengths, n, found = [one.n_cached for one in placed], len(placed), self.found
        if found.is_tried(n, lengths) or not found.rows_for(n):
            return
        key = (n, frozenset(map(found.place, lengths)))
        if key in self._tried:
            return
        self._tried.add(key)
        self.found = self._scout(found, [(one.seq_id, one.n_cached) for one in placed])

    def rows(self, placed: Sequence[Placed]) -> Sequence[int]:
        """How many rows each of them may have in one pass; ascending, none: they cannot share."""
        return self._fitting([one.n_cached for one in placed])

    def _fitting(self, lengths: Sequence[int]) -> Sequence[int]:
        room, fitting = self._size - max(lengths), self.found.fitting(lengths)
        if not fitting or fitting[-1] <= room:
            return fitting
        return [rows for rows in fitting if rows <= room]

    def frame(self, placed: Sequence[Placed]) -> Frame:
        """What a pass over them allows."""
        rows, lengths = self.rows(placed) or [1], [one.n_cached for one in placed]
        real = self.found.real_rows(lengths)
        # A text ends where a padded plain pass does not fit: no draft leads beyond.
        left = self._size - self.floor - max(lengths)
        return Frame(max(0, min(rows[-1] - 1, real - 1, left)), rows[0])

    def widths(self, rows: Sequence[int], lengths: Sequence[int]) -> Sequence[int]:
        """The rows to pad the sequences of a pass to; as they are where that is in the class, or
        where no padding helps."""
        if self.found.holds(rows, lengths):
            return rows
        least = max(rows)
        width = next((n for n in self._fitting(lengths) if n >= least), None)
        return rows if width is None else [width] * len(rows)


def _n_neighbours(left: Sequence[Placed]) -> int:
    """Of those with the lowest ids, how many follow each other: llama.cpp joins no others."""
    n = 1
    while n < len(left) and left[n].seq_id == left[n - 1].seq_id + 1:
        n += 1
    return n
