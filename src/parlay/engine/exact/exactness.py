"""Classes of passes whose logits and caches agree to the bit: which there are, and what one allows.

Plain data; knows no model. llama.cpp picks kernels by the shape of a pass and kernels round
differently, so an answer is exact if every one of its passes stays in one class, whichever.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any

from parlay.control.prices.cutting import Cutting
from parlay.errors import BadRequest

# llama.cpp reads a sequence's cells in pages of so many: a pass over a cell more reads a page more.
PAGE = 256
_IN_ONE = Cutting().n_most  # rows that are not cut for being too many


class Inexact(str, Enum):
    """Why an answer is not exact."""

    FAITHFUL = "faithful"  # it was asked for, or is the default here
    SHAPE = "shape"  # a pass left the class
    SLIDE = "slide"  # part of the text was dropped from the cache
    COMPACTION = "compaction"  # cells were moved: their sums have another order
    RECOVERY = "recovery"  # a pass failed, and part of the text was read again
    UNIFIED = "unified"  # one cache for all: where a text's cells lie depends on its neighbours
    THREADS = "threads"  # another number of threads made a pass: sums may be parted by it
    STATES = "states"  # a drafter reads hidden states, and that changes the target's sums


@dataclass(frozen=True, slots=True)
class ExactClass:
    """Shapes of passes that agree among themselves; a pass with fewer rows is padded to one."""

    widths: frozenset[int]  # rows of a pass over one sequence
    # Sequences of a pass and rows of each of them, where several agree with one alone.
    together: frozenset[tuple[int, int]] = frozenset()
    # Whether the pages that a pass over one sequence reads change its sums: then none may read
    # another number of them than a padded plain pass at the same place does.
    paged: bool = False
    prompts: bool = False  # whether prompts read in chunks of any size agree with its passes
    bands: frozenset[int] = frozenset()  # lengths of text it was probed at; see `place`
    company: frozenset[tuple[int, int]] = frozenset()  # the same for so many sequences
    uneven: frozenset[int] = frozenset()  # so many may share a pass whose texts differ in pages
    digest: str = ""  # of a few of its logits: tells later whether this still holds
    # Whether what was found after a text holds for as many pages alone: a GPU parts the sums of
    # attention by the pages and by how many sequences read them.
    by_page: bool = False
    joined: bool = False  # whether chunks of prompts that are read apart may share a pass

    @property
    def floor(self) -> int:
        """Rows of a padded plain pass over one sequence."""
        return min(self.widths)

    @property
    def limit(self) -> int:
        """Every width from the floor to this one is in the class."""
        n = self.floor
        while n + 1 in self.widths:
            n += 1
        return n

    @property
    def name(self) -> str:
        """Its widths, as people and settings write them: 1, 3-4, 8,12,16."""
        return ",".join(_runs(sorted(self.widths)))

    @property
    def concurrent(self) -> bool:
        """Whether any pass over several sequences is in it."""
        return bool(self.together)

    def place(self, length: int) -> int:
        """Texts in the same place are alike: what holds after one holds after the others."""
        return n_pages(length + self.floor) if self.by_page else band(length)

    def rows_for(self, n_sequences: int) -> list[int]:
        """How many rows each of so many sequences may have, all of them the same; ascending."""
        return list(_rows_for(self.widths, self.together, n_sequences))

    def holds(self, rows: Sequence[int], lengths: Sequence[int]) -> bool:
        """Whether a pass with so many rows of each sequence, after texts so long, is in it."""
        n, each = len(rows), rows[0]
        if n * each <= _IN_ONE and rows.count(each) == n:
            return each in self.fitting(lengths)
        return self._holds_in_parts(rows, lengths)

    def _holds_in_parts(self, rows: Sequence[int], lengths: Sequence[int]) -> bool:
        if len(rows) == 1 and rows[0] == self.floor:
            return True  # the padded plain pass, which the others are compared with
        # llama.cpp cuts a pass with more rows for some in parts with as many for each.
        parts = [(p.n_sequences, p.n_rows) for p in Cutting().parts(dict(enumerate(rows)))]
        if not all(self._ignores_pages(n) for n, _ in parts) and (
            (self.paged and len(parts) > 1) or not self._same_pages(max(rows), lengths)
        ):
            return False
        return all(
            n_rows // n in self.rows_for(n) and self.is_probed(n, lengths) for n, n_rows in parts
        )

    def _ignores_pages(self, n_sequences: int) -> bool:
        """Whether nothing depends on the pages that a pass over so many reads."""
        return not self.paged and (n_sequences == 1 or n_sequences in self.uneven)

    def is_tried(self, n_sequences: int, lengths: Sequence[int]) -> bool:
        """Whether nothing is left to be found out about so many after texts so long."""
        if self.is_probed(n_sequences, lengths):  # asked in every round: mostly that is all
            return self.paged or self._ignores_pages(n_sequences) or self._even(lengths)
        return self.by_page and not self._even(lengths)  # then they never share a pass

    def is_probed(self, n_sequences: int, lengths: Iterable[int]) -> bool:
        """Whether its shapes were tried on so many sequences after texts about so long."""
        if n_sequences == 1:
            return self.bands.issuperset(map(self.place, lengths)) or self._has_one_shape
        return all((n_sequences, self.place(length)) in self.company for length in lengths)

    @property
    def _has_one_shape(self) -> bool:
        """Whether one sequence has single rows alone: those agree with themselves everywhere."""
        return self.widths == {1}

    def _even(self, lengths: Iterable[int]) -> bool:
        """Whether padded plain passes after texts so long read equally many pages."""
        return len({n_pages(length + self.floor) for length in lengths}) == 1

    def _same_pages(self, rows: int, lengths: Sequence[int]) -> bool:
        alone = {n_pages(length + self.floor) for length in lengths}
        return len(alone) == 1 and alone == {n_pages(max(lengths) + rows)}

    def fitting(self, lengths: Sequence[int]) -> Sequence[int]:
        """The rows that each sequence of a pass may have, after texts so long; ascending."""
        # Asked in every round: mostly only the bands of the texts matter.
        if self._ignores_pages(len(lengths)):
            return _fitting(self, len(lengths), frozenset(map(band, lengths)))
        return self._holding(lengths)

    def _holding(self, lengths: Sequence[int]) -> Sequence[int]:
        n = len(lengths)
        possible = _rows_for(self.widths, self.together, n)
        if not possible or n * possible[-1] > _IN_ONE:
            return tuple(r for r in possible if self._holds_in_parts([r] * n, lengths))
        if not self.is_probed(n, lengths):
            return (self.floor,) if n == 1 else ()
        if self._ignores_pages(n):
            return possible
        return self._on_one_page(possible, lengths)

    def _on_one_page(self, possible: Sequence[int], lengths: Sequence[int]) -> Sequence[int]:
        """The rows with which all read as many pages as a padded plain pass at their places."""
        floor, longest = self.floor, max(lengths)
        page = n_pages(longest + floor)
        if n_pages(min(lengths) + floor) != page:
            return ()
        alone = floor if len(lengths) == 1 else 0  # what the others are compared with
        return tuple(r for r in possible if n_pages(longest + r) == page or r == alone)

    def real_rows(self, lengths: Sequence[int]) -> int:
        """The most rows that may be real: each reads the pages of a plain pass at its place. Where
        nothing was tried, or what was tried differs, one: the others are padding."""
        if not self.is_probed(len(lengths), lengths):
            return 1
        if self._ignores_pages(len(lengths)):
            return max(self.widths)
        return n_pages(max(lengths) + self.floor) * PAGE - self.floor - max(lengths) + 1

    def to_dict(self) -> dict[str, Any]:
        return {
            "widths": sorted(self.widths),
            "together": sorted(map(list, self.together)),
            "paged": self.paged,
            "prompts": self.prompts,
            "bands": sorted(self.bands),
            "company": sorted(map(list, self.company)),
            "uneven": sorted(self.uneven),
            "digest": self.digest,
            "by_page": self.by_page,
            "joined": self.joined,
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> ExactClass:
        """From the JSON form; raises BadRequest where it is none."""
        try:
            made = cls(
                _counts(record["widths"]),
                frozenset((_count(n), _count(rows)) for n, rows in record["together"]),
                bool(record["paged"]),
                bool(record["prompts"]),
                frozenset(int(n) for n in record["bands"]),
                frozenset((_count(n), int(length)) for n, length in record["company"]),
                _counts(record["uneven"]),
                str(record["digest"]),
                bool(record["by_page"]),
                bool(record["joined"]),
            )
        except (LookupError, TypeError, ValueError) as error:
            raise BadRequest(f"not a class of passes: {error!r}") from None
        if not made.widths:
            raise BadRequest("not a class of passes: it has no widths")
        return made


# What needs no probe: passes over one row, one sequence at a time.
SINGLE = ExactClass(frozenset({1}))


@lru_cache(256)
def _rows_for(
    widths: frozenset[int], together: frozenset[tuple[int, int]], n_sequences: int
) -> Sequence[int]:
    if n_sequences == 1:
        return tuple(sorted(widths))
    return tuple(sorted(rows for n, rows in together if n == n_sequences))


@lru_cache(1024)
def _fitting(found: ExactClass, n_sequences: int, bands: frozenset[int]) -> Sequence[int]:
    """Of a class whose shapes do not depend on pages: texts in the same bands are alike."""
    lengths = [(PAGE << b) >> 1 for b in bands]
    return found._holding(lengths + lengths[:1] * (n_sequences - len(lengths)))


def band(length: int) -> int:
    """Texts are told apart by powers of two from a page on: kernels switch with the length too."""
    return max(0, (length // PAGE).bit_length())


def n_pages(n_cells: int) -> int:
    return -(-n_cells // PAGE)


def pinned(classes: Iterable[ExactClass], name: str) -> ExactClass:
    """The class of this name, or the one that has this width."""
    every = tuple(classes)
    for found in every:
        if name.strip() == found.name or (name.isdigit() and int(name) in found.widths):
            return found
    known = ", ".join(found.name for found in every) or "none"
    raise BadRequest(f"there is no exact class {name!r} here; there are: {known}")


def _runs(widths: Sequence[int]) -> list[str]:
    """Neighbours joined: 3, 4, 5, 8 become 3-5 and 8."""
    starts = [w for w in widths if w - 1 not in widths]
    ends = [w for w in widths if w + 1 not in widths]
    return [str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True)]


def _count(value: object) -> int:
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"{value!r} is not a number of rows")
    return value


def _counts(values: Iterable[object]) -> frozenset[int]:
    return frozenset(map(_count, values))
