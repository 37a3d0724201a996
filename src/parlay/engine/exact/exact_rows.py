"""An exact class as a simulation sees it: how many rows each of so many sequences may have.

Plain data; the runtime finds out what is in it (`engine/exact/exactness.py`). A pass that
has too few rows is padded, and sequences that cannot share a pass take turns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExactRows:
    """Rows of each sequence of a pass, ascending, by the number of sequences."""

    by_number: Mapping[int, tuple[int, ...]]

    @classmethod
    def up_to(cls, n_rows: int) -> ExactRows:
        """Where every pass with so many rows over all sequences is exact."""
        return cls({n: tuple(range(1, n_rows // n + 1)) for n in range(1, n_rows + 1)})

    def numbers(self, most: int) -> list[int]:
        """How many sequences may share a pass, of so many that there are."""
        return [n for n in range(1, most + 1) if n == 1 or self.by_number.get(n)]

    def floor(self, n_sequences: int) -> int:
        """Rows of each in a pass without drafts."""
        return self.by_number[n_sequences][0]

    def padded(self, n_sequences: int, n_rows: int) -> int:
        """The fewest rows of each that hold so many."""
        return next(rows for rows in self.by_number[n_sequences] if rows >= n_rows)

    def widest(self, n_sequences: int) -> int:
        """The largest window of so many in one pass."""
        return self.by_number[n_sequences][-1] - 1
