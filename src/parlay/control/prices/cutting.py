"""Into which parts llama.cpp cuts a pass over several sequences, what they cost, and which padding
spares it being cut.

Knows rows by sequence and prices; no model. Where every sequence has a cache of its own (apart),
one part holds neighbouring ids with equally many rows, and what is left goes into further parts: a
gap in the ids or one longer draft makes two passes of one. One cache for all (unified) takes any
rows at once, unless the model is recurrent: its parts have equal rows, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

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


# -- padding that makes a pass cheaper: rows that nobody reads, where it would be cut in parts ----

# Seconds, or anything that grows with them, of a pass that is made in these parts.
Price = Callable[[Sequence[PassPart]], float]
# Of a plain pass, what one more row costs where nobody has measured it.
_ROW = 0.02


def unmeasured(parts: Sequence[PassPart]) -> float:
    """Prices where there are none: every part reads the weights again, rows cost little."""
    return sum(1.0 + _ROW * part.n_rows for part in parts)


def is_whole(rows: Mapping[int, int]) -> bool:
    """Whether the ids, which come in order, follow each other and all have equally many rows."""
    return all(b == a + 1 for a, b in pairwise(rows)) and len(set(rows.values())) <= 1


def padded(
    rows: Mapping[int, int],
    fixed: Collection[int],
    spare: Collection[int],
    cutting: Cutting,
    price: Price = unmeasured,
) -> Mapping[int, int]:
    """The cheapest rows by id that contain `rows`: the same, without gaps, equally long, or both.

    `fixed`: ids whose rows stay as they are. `spare`: idle ids that have room for a draft's rows.
    """
    if is_whole(rows) or cutting.unified:
        return rows
    most = max((n for seq_id, n in rows.items() if seq_id not in fixed), default=0)
    equal = {seq_id: n if seq_id in fixed else most for seq_id, n in rows.items()}
    found = [equal, _without_gaps(rows, spare, 1), _without_gaps(equal, spare, most)]
    fitting = [rows, *(each for each in found if sum(each.values()) <= cutting.n_most)]
    return min(fitting, key=lambda each: price(cutting.parts(each)))  # of equals the first


def _without_gaps(rows: Mapping[int, int], spare: Collection[int], n: int) -> Mapping[int, int]:
    """With n rows for every id in a gap that can be closed."""
    made = dict(rows)
    for a, b in pairwise(sorted(rows)):
        between = range(a + 1, b)
        if n and all(seq_id in spare for seq_id in between):
            made.update(dict.fromkeys(between, n))
    return dict(sorted(made.items()))
