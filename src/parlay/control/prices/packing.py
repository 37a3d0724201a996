"""Padding that makes a pass cheaper: rows that nobody reads, where llama.cpp would cut it in parts.

Knows rows by sequence id and prices; no model. A gap in the ids is filled with a row of an idle
sequence, and drafts of different lengths are made equally long, if the whole costs less then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise

from parlay.control.prices.cutting import Cutting, PassPart

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
