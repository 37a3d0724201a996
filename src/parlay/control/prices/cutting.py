"""Into which parts llama.cpp cuts one pass over several sequences, and what they cost together.

Knows rows by sequence and prices; no model. Where every sequence has a cache of its own (apart),
one part holds neighbouring ids with equally many rows, and what is left goes into further parts: a
gap in the ids or one longer draft makes two passes of one. One cache for all (unified) takes any
rows at once, unless the model is recurrent: its parts have equal rows, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from parlay.control.prices.cost import CostTable
from parlay.control.prices.curve import MAX_ROWS


@dataclass(frozen=True, slots=True)
class PassPart:
    """One pass as the machine makes it."""

    n_sequences: int
    n_rows: int  # of all its sequences together


@dataclass(frozen=True, slots=True)
class Cutting:
    """How a context cuts its passes."""

    unified: bool = False  # one cache for all sequences
    recurrent: bool = False  # the model keeps a state, alone or beside attention
    n_most: int = 512  # rows of a part (llama.cpp's n_ubatch)
    n_tail: int = 0  # last rows of a sequence that are never parted (snapshots of a state)

    def parts(self, rows: Mapping[int, int]) -> list[PassPart]:
        """The parts of a pass with so many rows by sequence id."""
        left = [[seq_id, n] for seq_id, n in sorted(rows.items()) if n]
        if self.unified and not self.recurrent:
            return self._in_order(left)
        found = []
        while left:
            found.append(self._take_equal(left))
            left = [each for each in left if each[1]]
        return found

    def _in_order(self, left: list[list[int]]) -> list[PassPart]:
        """Row after row, whosever they are."""
        owners = [seq_id for seq_id, n in left for _ in range(n)]
        chunks = (owners[at : at + self.n_most] for at in range(0, len(owners), self.n_most))
        return [PassPart(len(set(chunk)), len(chunk)) for chunk in chunks]

    def _take_equal(self, left: list[list[int]]) -> PassPart:
        """Take the next part out of what is left: equally many rows of several sequences."""
        together = left if self.unified else _neighbours(left)
        # llama.cpp stops gathering with one sequence more than it has rows for.
        together = together[: self.n_most + 1]
        n_each = min(n for _, n in together)
        n_each = min(n_each, max(1, self.n_most // len(together)))
        if self.n_tail:
            together, n_each = self._whole_tails(together, n_each)
        for each in together:
            each[1] -= n_each
        return PassPart(len(together), n_each * len(together))

    def _whole_tails(self, together: list[list[int]], n_each: int) -> tuple[list[list[int]], int]:
        """Only as many sequences as do not have their last rows parted."""
        kept = 0
        for _, n in together:
            if 0 < n - n_each < self.n_tail:
                break
            kept += 1
        if kept:
            return together[:kept], n_each
        n = together[0][1]
        return together[:1], n if n <= self.n_most else min(n_each, n - self.n_tail)


APART = Cutting()


def _neighbours(left: list[list[int]]) -> list[list[int]]:
    """The first sequences whose ids follow each other."""
    n = 1
    while n < len(left) and left[n][0] == left[n - 1][0] + 1:
        n += 1
    return left[:n]


def seconds(
    parts: Sequence[PassPart], costs: CostTable, n_context: int, last: PassPart | None = None
) -> float:
    """What these parts cost by the table, one after the other; `last`: the part before them.

    A part of another shape than the one before it pays for the change. As in all prices of a table,
    the machine's present pace is not in it.
    """
    total = 0.0
    for part in parts:
        curve = costs.curve(n_context, part.n_sequences)
        total += curve.of(min(part.n_rows, MAX_ROWS), last is not None and part != last)
        last = part
    return total
