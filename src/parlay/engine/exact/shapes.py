"""Which shapes of passes agree to the bit, who shares one, and how many rows each has.

Knows rows and lengths of texts; nothing of drafts or models. llama.cpp picks kernels by the shape
of a pass and kernels round differently, so an answer is exact if every one of its passes stays in
one class: all widths up to a limit where a probe found them to agree, else one width. A pass with
fewer rows is padded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any, Protocol, TypeVar

from parlay.errors import BadRequest

# llama.cpp reads a sequence's cells in pages of so many: a pass over a cell more reads a page more.
PAGE = 256
# Rows of a pass over several sequences, and of each: more bring little, and nobody tried them.
MAX_EXACT_ROWS, _MOST_EACH = 32, 8


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
    """Widths of passes that agree among themselves, and what that was tried on."""

    floor: int  # rows of a padded plain pass over one sequence
    limit: int  # rows at most; every width between is in the class
    prompts: bool = False  # whether prompts read in chunks of any size agree with its passes
    # Whether what was found after a text holds for as many pages alone: a GPU parts the sums of
    # attention by the pages that a pass reads.
    by_page: bool = False
    places: frozenset[int] = frozenset()  # lengths of text it was tried at; see `place`
    # The same for several sequences in a pass: how many, whether their texts read equally many
    # pages, and their places.
    shared: frozenset[tuple[int, bool, tuple[int, ...]]] = frozenset()
    digest: str = ""  # of a few of its logits: tells later whether this still holds
    joined: bool = False  # whether chunks of prompts that are read apart may share a pass

    @property
    def whole(self) -> bool:
        """Whether every pass up to the limit is in it, over several sequences too."""
        return self.floor < self.limit

    @property
    def name(self) -> str:
        """Its widths, as people and settings write them: 4, or 1-17."""
        return f"{self.floor}-{self.limit}" if self.whole else str(self.floor)

    def place(self, length: int) -> int:
        """Texts in the same place are alike: what holds after one holds after the others."""
        return n_pages(length + self.floor) if self.by_page else band(length)

    def rows_for(self, n_sequences: int) -> Sequence[int]:
        """How many rows each of so many sequences may have, all of them the same; ascending. None:
        they take turns."""
        if n_sequences == 1:
            return range(self.floor, self.limit + 1)
        most = min(self.limit, _MOST_EACH, MAX_EXACT_ROWS // n_sequences)
        return range(1, most + 1) if self.whole else ()

    def is_tried(self, lengths: Sequence[int]) -> bool:
        """Whether its shapes were tried on so many sequences after texts about so long."""
        if len(lengths) == 1:
            return self.limit == 1 or self.place(lengths[0]) in self.places
        return self._key(lengths) in self.shared

    def with_places(self, lengths: Sequence[int]) -> ExactClass:
        """The class, tried there."""
        if len(lengths) == 1:
            return replace(self, places=self.places | {self.place(lengths[0])})
        return replace(self, shared=self.shared | {self._key(lengths)})

    def _key(self, lengths: Sequence[int]) -> tuple[int, bool, tuple[int, ...]]:
        even = len({n_pages(length + self.floor) for length in lengths}) == 1
        return len(lengths), even, tuple(sorted(set(map(self.place, lengths))))

    def fitting(self, lengths: Sequence[int]) -> Sequence[int]:
        """The rows that each sequence of a pass may have, after texts so long; ascending. Where
        nothing was tried a sequence alone has padded plain passes, which need no trial."""
        if self.is_tried(lengths):
            return self.rows_for(len(lengths))
        return (self.floor,) if len(lengths) == 1 else ()

    def holds(self, rows: Sequence[int], lengths: Sequence[int]) -> bool:
        """Whether a pass with so many rows of each sequence, after texts so long, is in it."""
        return len(set(rows)) == 1 and rows[0] in self.fitting(lengths)

    def real_rows(self, lengths: Sequence[int]) -> int:
        """The most rows that may be real, the others being padding: each has to read the pages of a
        plain pass at its own place, unless pages change nothing."""
        if not self.is_tried(lengths):
            return 1
        if self.whole:
            return self.limit
        return n_pages(max(lengths) + self.floor) * PAGE - self.floor - max(lengths) + 1

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "places": sorted(self.places), "shared": sorted(self.shared)}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> ExactClass:
        """From the JSON form; raises BadRequest where it is none."""
        try:
            floor, limit = int(record["floor"]), int(record["limit"])
            if not 1 <= floor <= limit:
                raise ValueError(f"no widths from {floor} to {limit}")
            return cls(
                floor,
                limit,
                bool(record["prompts"]),
                bool(record["by_page"]),
                frozenset(int(n) for n in record["places"]),
                frozenset((int(n), bool(e), tuple(map(int, p))) for n, e, p in record["shared"]),
                str(record["digest"]),
                bool(record["joined"]),
            )
        except (LookupError, TypeError, ValueError) as error:
            raise BadRequest(f"not a class of passes: {error!r}") from None


# What needs no probe: passes over one row, one sequence at a time.
SINGLE = ExactClass(1, 1)


def band(length: int) -> int:
    """Texts are told apart by powers of two from a page on: kernels switch with the length too."""
    return max(0, (length // PAGE).bit_length())


def n_pages(n_cells: int) -> int:
    return -(-n_cells // PAGE)


# -- passes ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Frame:
    """What a pass leaves to those who draft for it."""

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
        scout: Scout = _stay,
        cost_percent: float | None = None,
    ) -> None:
        """`cost_percent`: of the speed that staying in the class costs, as answers tell it."""
        self.found = found
        self.cost_percent = cost_percent
        self._size = context_size
        self._scout = scout
        self._tried: set[tuple[int, ...]] = set()  # places: what was found there is in the class

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
        """Those who decode, parted into passes of the class: as many in each as may share one.
        llama.cpp puts none together but those whose ids follow each other."""
        left, found = sorted(placed, key=lambda one: one.seq_id), []
        for one in left:
            self._try([one])
        while left:
            n = 1
            while n < len(left) and left[n].seq_id == left[n - 1].seq_id + 1:
                n += 1
            while n > 1 and not self._shares(left[:n]):
                n -= 1
            found.append(left[:n])
            left = left[n:]
        return found

    def _shares(self, placed: Sequence[Placed]) -> bool:
        if self.found.rows_for(len(placed)):
            self._try(placed)
        return bool(self.rows(placed))

    def _try(self, placed: Sequence[Placed]) -> None:
        """Where so many, or texts so long, were never tried in the class, try them there, once."""
        lengths = [one.n_cached for one in placed]
        if self.found.is_tried(lengths):
            return
        place = (len(placed), *sorted({self.found.place(n) for n in lengths}))
        if place not in self._tried:
            self._tried.add(place)
            self.found = self._scout(self.found, [(one.seq_id, one.n_cached) for one in placed])

    def rows(self, placed: Sequence[Placed]) -> Sequence[int]:
        """How many rows each of them may have in one pass; ascending, none: they cannot share."""
        return self._fitting([one.n_cached for one in placed])

    def _fitting(self, lengths: Sequence[int]) -> Sequence[int]:
        room = self._size - max(lengths)
        return [rows for rows in self.found.fitting(lengths) if rows <= room]

    def frame(self, placed: Sequence[Placed]) -> Frame:
        """What a pass over them allows."""
        rows, lengths = self.rows(placed) or [1], [one.n_cached for one in placed]
        # A text ends where a padded plain pass does not fit: no draft leads beyond.
        left = self._size - self.floor - max(lengths)
        real = self.found.real_rows(lengths)
        return Frame(max(0, min(rows[-1] - 1, real - 1, left)), rows[0])

    def widths(self, rows: Sequence[int], lengths: Sequence[int]) -> Sequence[int]:
        """The rows to pad the sequences of a pass to; as they are where no padding helps."""
        least = max(rows)
        width = next((n for n in self._fitting(lengths) if n >= least), None)
        return rows if width is None else [width] * len(rows)
