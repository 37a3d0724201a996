"""Finds out which passes agree to the bit, by trying: on a CPU mostly all of them, elsewhere those
of one width.

Knows `Passes` and classes, and nothing of drafts or requests: nothing but a probe on this build,
device, file and cache type can tell. A text is stepped through in passes of chosen shapes, and the
hash of the logits at every place is compared with what another way gave there.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from parlay.decoding.span import Passes, Span, pad
from parlay.engine.exact.shapes import PAGE, ExactClass, band, n_pages
from parlay.errors import ParlayError
from parlay.timing.probe_text import probe_tokens

Digest = bytes

_N_PATH = 65  # tokens of which every row is known
_FIRST = 3  # widths up to here mostly tell a file whose passes differ
_FEW = 5  # and up to here they stand for all in a long text, with the widest
_SMALL_CHUNK = 19  # of a prompt; it ends in the middle of whatever kernels take at once
_N_CACHED = 4  # rows that read what a large chunk left in the cache
_BEFORE_PAGE = 4  # tokens that a long text lacks to a page: passes after it read one more or not
_N_MIXED = 12  # tokens of a walk in which widths and padding change from pass to pass
# Rows agree by chance in one context or two, as a tiny model at Q4_K_M shows: a width has to agree
# with itself in these, the last of them past the first page.
_PLACES = (24, 9, 41, 17, 33, PAGE + 8)
_N_BEFORE, _N_SIGNED = 24, 4  # tokens before the places whose logits are hashed, and these places
N_JOINED = 2  # chunks of a prompt in a pass: more of them save little
_SLOW_S = 2.0  # of one chunk: then whoever comes next waits too long for two
# On a GPU the fourth pass of a shape is the first that is made as later ones will be.
_N_UNTIL_STEADY = 4


class OutOfTime(Exception):
    """The budget was spent in the middle of a question."""


@dataclass(slots=True)
class Budget:
    """Time for a probe. On a busy machine it counts rows at the speed of the fastest single pass
    seen, which makes the probe slower, not blinder; a model that is slow by itself gets fewer."""

    seconds: float
    started: float = field(default_factory=perf_counter)
    fastest_s: float = float("inf")
    n_rows: int = 0

    def spend(self, n_rows: int) -> None:
        self.n_rows += n_rows
        if min(perf_counter() - self.started, self.n_rows * self.fastest_s) > self.seconds:
            raise OutOfTime

    def note(self, n_rows: int, seconds: float) -> None:
        if n_rows == 1:
            self.fastest_s = min(self.fastest_s, seconds)


@dataclass(frozen=True, slots=True)
class Run:
    """Real tokens of one sequence for one pass; the rest of its rows is padding."""

    seq_id: int
    start: int
    tokens: Sequence[int]


class Walker:
    """Makes passes and takes their padding back."""

    def __init__(self, passes: Passes, chunk: int = 1, budget: Budget | None = None) -> None:
        self.passes = passes
        self.chunk = chunk
        self._budget = budget or Budget(float("inf"))

    def read(self, prefix: Sequence[int], seq_id: int = 0) -> list[Digest]:
        """A text into an empty cache, in chunks; what each of them ends with."""
        self.passes.clear(seq_id)
        chunks = (prefix[at : at + self.chunk] for at in range(0, len(prefix), self.chunk))
        found = [
            digest(self._decode([Span(seq_id, i * self.chunk, chunk, 1)])[0][0])
            for i, chunk in enumerate(chunks)
        ]
        self.passes.mark(seq_id, lasting=True)
        return found

    @property
    def cuts(self) -> bool:
        """Whether the cache, which holds a text now, can be cut anywhere."""
        half = self.passes.length(0) // 2
        return self.passes.reusable(0, half) == half

    def rewind(self, prefix: Sequence[int]) -> None:
        """Leave just the prefix in the cache; one without a mark there has to read it again."""
        if self.passes.reusable(0, len(prefix)) == len(prefix):
            self.passes.truncate(0, len(prefix))
        else:
            self.read(prefix)

    def steps(self, runs: Sequence[Run], width: int) -> list[list[Digest]]:
        """One pass with so many rows of every sequence; its padding is taken back."""
        spans = [Span(run.seq_id, run.start, pad(run.tokens, width), width) for run in runs]
        rows = self._decode(spans)
        found = [
            [digest(row) for row in own[: len(run.tokens)]]
            for own, run in zip(rows, runs, strict=True)
        ]
        for run in runs:
            if len(run.tokens) < width:
                self.passes.truncate(run.seq_id, run.start + len(run.tokens))
        return found

    def step(self, start: int, tokens: Sequence[int], width: int, seq_id: int = 0) -> list[Digest]:
        """One pass of one sequence."""
        return self.steps([Run(seq_id, start, tokens)], width)[0]

    def walk(
        self, start: int, tokens: Sequence[int], width: int, seq_id: int = 0
    ) -> Iterator[Digest]:
        """One real row a pass, the others padding."""
        for i, token in enumerate(tokens):
            yield self.step(start + i, [token], width, seq_id)[0]

    def mixed(self, start: int, tokens: Sequence[int], widths: Sequence[int]) -> Iterator[Digest]:
        """Any of these widths after any other, any number of rows real: as an answer goes."""
        dice, at = random.Random(start), 0
        while at < len(tokens):
            width = dice.choice(widths)
            n = min(dice.randint(1, width), len(tokens) - at)
            yield from self.step(start + at, tokens[at : at + n], width)
            at += n

    def _decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
        n_rows = sum(len(span.tokens) for span in spans)
        self._budget.spend(n_rows)
        started = perf_counter()
        rows = self.passes.decode(spans)
        self._budget.note(n_rows, perf_counter() - started)
        return rows


def digest(row: NDArray[np.float32]) -> Digest:
    return hashlib.blake2b(row.tobytes(), digest_size=16).digest()


# -- all passes -----------------------------------------------------------------------------------


def probe_whole(walker: Walker, max_rows: int, wide: int) -> ExactClass | None:
    """The class of all passes with up to `max_rows` rows, prompts' chunks among them, and of up to
    `wide` rows if those agree too; None: they differ, or the context is too short to tell."""
    if walker.passes.steady:  # a GPU has other kernels for other widths
        return None
    try:
        return _WholeProbe(walker, max_rows, wide).find()
    finally:
        walker.passes.clear(0)


class _WholeProbe:
    """One text is stepped through in every way. What mostly differs comes first: where passes do
    differ, that shows in the first four, with 23 rows, nearly always."""

    def __init__(self, walker: Walker, max_rows: int, wide: int) -> None:
        self._walker = walker
        self._max_rows = max_rows
        self._wide = max(max_rows, min(wide, walker.chunk))
        self._n_path = max(_N_PATH, self._wide)
        self._size = walker.passes.context_size
        # A prompt that is read in chunks, past a page if there is room, nearly to its end.
        self._n_chunk = min(walker.chunk, self._size - max_rows - 1)
        self._n_long = n_pages(self._n_chunk + _BEFORE_PAGE) * PAGE - _BEFORE_PAGE
        self._has_long = self._n_long + _N_MIXED + max_rows <= self._size
        self._n_read = self._n_long if self._has_long else self._n_chunk
        self._text = probe_tokens(self._size, walker.passes.n_vocab)
        self._known: dict[int, Digest] = {}  # by place in the text

    def find(self) -> ExactClass | None:
        longest = max(self._n_path, self._n_read) + self._max_rows
        if self._max_rows > _N_PATH // 2 or longest > self._size:
            return None
        asked = (self._first_agree, self._path_agrees, self._widths_agree, self._prompts_agree)
        if not all(agree() for agree in asked):
            return None
        long = [band(self._n_read + _BEFORE_PAGE)] if self._has_long else []
        return ExactClass(
            1,
            self._wide,
            prompts=True,
            places=frozenset({0, *long, *self._long_places()}),
            digest=_signed(self._known[_N_BEFORE + i] for i in range(_N_SIGNED)),
        )

    def _first_agree(self) -> bool:
        """The widest pass and the smallest ones, from the start of the text."""
        widths = range(1, min(_FIRST, self._max_rows) + 1)
        return all(self._in_turn(0, each) for each in ([self._max_rows], widths))

    def _path_agrees(self) -> bool:
        """The text's beginning in the widest passes; in much wider ones, if these agree."""
        n, wide = self._max_rows, self._wide
        if wide > n:
            self._walker.passes.clear(0)
            rows = self._walker.step(0, self._text[:wide], wide)
            if self._agree(0, rows[:n]):
                return self._agree(0, rows) and self._in_turn(wide, self._until_end(wide))
            self._wide = n
        return self._in_turn(0, self._until_end(0))

    def _until_end(self, at: int) -> list[int]:
        return [self._max_rows] * -((at - self._n_path) // self._max_rows)

    def _widths_agree(self) -> bool:
        """Every width once, after a prompt; those that would pass the text's known part go back."""
        at = min(_SMALL_CHUNK, self._walker.chunk)
        if not self._agree(at - 1, self._walker.read(self._text[:at])):
            return False
        for width in range(_FIRST + 1, self._max_rows):
            back = min(at, self._n_path - width)
            if not self._passes(back, width):
                return False
            at = back + width
        return True

    def _prompts_agree(self) -> bool:
        """Chunks, of which only the last logits are asked for, leave what other passes leave."""
        n = self._n_read
        ends = self._walker.read(self._text[:n])
        first = min(n, self._walker.chunk)
        if not (self._agree(n - 1, ends[-1:]) and self._agree(first - 1, ends[:1])):
            return False
        if self._has_long and not self._long_agrees():
            return False
        read = ((n - 1, 1), (first - 1, 1), (min(n, self._n_path) - _N_CACHED, _N_CACHED))
        return all(self._passes(at, width) for at, width in read)

    def _long_agrees(self) -> bool:
        """After a text at whose end some passes read a page more than others."""
        start, few = self._n_long, [*range(1, min(_FEW, self._max_rows) + 1)]
        if not (self._in_turn(start, few) and self._passes(start, self._max_rows)):
            return False
        if not self._passes(start + _BEFORE_PAGE + 1, self._max_rows):
            return False
        return self._mixes(start, [*few, self._max_rows])

    def _mixes(self, start: int, widths: Sequence[int]) -> bool:
        self._walker.rewind(self._text[:start])
        tokens = self._text[start : start + _N_MIXED]
        return self._agree(start, self._walker.mixed(start, tokens, widths))

    def _long_places(self) -> Iterator[int]:
        """A cache that cannot be cut anywhere cannot be probed in the middle of an answer: at every
        doubling of the length it is now."""
        length = 2 * PAGE + _BEFORE_PAGE
        while length + max(_N_MIXED, self._max_rows) <= self._size and not self._walker.cuts:
            self._walker.read(self._text[:length])
            tokens = self._text[length : length + _N_MIXED]
            alone = list(self._walker.walk(length, tokens, 1))
            widths = [*range(1, min(_FEW, self._max_rows) + 1), self._max_rows]
            if not (self._agree(length, alone) and self._mixes(length, widths)):
                return
            yield band(length)
            length *= 2

    def _in_turn(self, at: int, widths: Iterable[int]) -> bool:
        """Passes of these widths, each where the one before ended."""
        for width in widths:
            if not self._passes(at, width):
                return False
            at += width
        return True

    def _passes(self, at: int, width: int) -> bool:
        """Whether a pass of real rows there, after the text before it, gives what is known."""
        if at == 0:
            self._walker.passes.clear(0)
        elif self._walker.passes.length(0) != at:
            self._walker.rewind(self._text[:at])
        return self._agree(at, self._walker.step(at, self._text[at : at + width], width))

    def _agree(self, at: int, rows: Iterable[Digest]) -> bool:
        """Whether rows from there on are what others gave; the first to come is believed."""
        return all(self._known.setdefault(at + i, row) == row for i, row in enumerate(rows))


# -- one width ------------------------------------------------------------------------------------


def probe_width(walker: Walker, width: int) -> ExactClass | None:
    """The class of passes with just so many rows of one sequence, whichever of them are real; None:
    what a row gives depends on its place in such a pass."""
    passes, n = walker.passes, max(width, _N_MIXED)
    made = ExactClass(width, width, by_page=passes.steady)
    if width == 1:
        return replace(made, digest=signature(walker, made))
    found: set[int] = set()
    try:
        for length in _PLACES:
            if length + n + width > passes.context_size:
                continue
            tokens = probe_tokens(length + n, passes.n_vocab, length)
            walker.read(tokens[:length])
            if not _agrees_with_itself(walker, tokens, length, width):
                return None
            found.add(made.place(length))
        if not found:
            return None
        return replace(made, places=frozenset(found), digest=signature(walker, made))
    finally:
        passes.clear(0)


def _agrees_with_itself(walker: Walker, tokens: Sequence[int], length: int, width: int) -> bool:
    """One real row a pass, all of them real, and any number of them."""
    rest = tokens[length:]
    alone = list(walker.walk(length, rest, width))
    for _ in range(_N_UNTIL_STEADY if walker.passes.steady else 1):
        walker.rewind(tokens[:length])
        rows = walker.step(length, rest[:width], width)
        if rows != alone[:width]:
            return False
    walker.rewind(tokens[:length])
    return list(walker.mixed(length, rest, [width])) == alone


def joins(passes: Passes, chunk: int) -> bool:
    """Whether several chunks of a prompt that are read apart leave in one pass what they leave in
    as many. The kernels that prompts have take rows in tiles: a row's sums do not depend on its
    neighbours, and one pass takes less time."""
    n = N_JOINED * chunk
    if n >= passes.context_size:
        return False
    text, ends = probe_tokens(n + 1, passes.n_vocab), list[Digest]()
    try:
        for step in (chunk, n):
            passes.clear(0)
            started = perf_counter()
            for at in range(0, n, step):
                (rows,) = passes.decode([Span(0, at, text[at : at + step], 1, apart=True)])
            if perf_counter() - started > N_JOINED * _SLOW_S:
                return False
            ends.append(digest(rows[0]))
            # And those of a token after it, which reads all of the cache.
            ends.append(digest(passes.decode([Span(0, n, text[n:], 1)])[0][0]))
        return ends[:2] == ends[2:]
    finally:
        passes.clear(0)


# -- later ----------------------------------------------------------------------------------------


def signature(walker: Walker, found: ExactClass, seq_id: int = 0) -> str:
    """A hash of what the class gives after a fixed text, by padded plain passes."""
    n = min(_N_BEFORE, walker.passes.context_size - _N_SIGNED - found.floor)
    tokens = probe_tokens(n + _N_SIGNED, walker.passes.n_vocab)
    walker.read(tokens[:n], seq_id)
    return _signed(walker.walk(n, tokens[n:], found.floor, seq_id))


def _signed(rows: Iterable[Digest]) -> str:
    return hashlib.sha256(b"".join(rows)).hexdigest()[:24]


def still_holds(passes: Passes, found: ExactClass, chunk: int = 16, seq_id: int = 0) -> bool:
    """Whether a class probed earlier gives the same logits now; a few passes tell."""
    try:
        return found.digest == signature(Walker(passes, chunk), found, seq_id)
    finally:
        passes.clear(seq_id)


def reaches(
    passes: Passes, found: ExactClass, placed: Sequence[tuple[int, int]], budget_s: float
) -> ExactClass:
    """The class with what it is found to hold for at the ends of these sequences' own texts, given
    by id and length; their caches are left as they were. Without time nothing is found, nor where
    a pass fails: what cannot be tried is not known to hold."""
    walker = Walker(passes, 1, Budget(budget_s))
    n_vocab, lengths = passes.n_vocab, [n for _, n in placed]
    runs = [Run(s, n, probe_tokens(_N_MIXED, n_vocab, n)) for s, n in placed]
    widest = found.rows_for(len(placed))[-1]
    if max(lengths) + _N_MIXED + widest > passes.context_size:
        return found
    try:
        if not _agrees_there(walker, found, runs):
            return found
        return found.with_places(lengths)
    except (OutOfTime, ParlayError):
        return found
    finally:
        for run in runs:
            passes.truncate(run.seq_id, run.start)


def _agrees_there(walker: Walker, found: ExactClass, runs: Sequence[Run]) -> bool:
    """Whether passes of some widths give each sequence what padded plain passes give it alone: one
    row of it real, and as many as there are."""
    alone = []
    for run in runs:
        alone.append(list(walker.walk(run.start, run.tokens, found.floor, run.seq_id)))
        walker.passes.truncate(run.seq_id, run.start)
    possible = found.rows_for(len(runs))
    for width in sorted({*possible[:_FEW], possible[-1]}):
        full = min(width, _N_MIXED - 1)
        for n_real in sorted({1, full} if len(runs) > 1 else {full}):
            if not _gives(
                walker, found, [replace(r, tokens=r.tokens[:n_real]) for r in runs], width, alone
            ):
                return False
    return True


def _gives(
    walker: Walker,
    found: ExactClass,
    runs: Sequence[Run],
    width: int,
    alone: Sequence[Sequence[Digest]],
) -> bool:
    """Whether one pass gives each its own rows, and a plain pass then reads what it left."""
    rows = walker.steps(runs, width)
    good = all(r == own[: len(r)] for r, own in zip(rows, alone, strict=True))
    if good and len(runs) == 1:
        (run,) = runs
        n = len(run.tokens)
        token = probe_tokens(n + 1, walker.passes.n_vocab, run.start)[n:]
        good = walker.step(run.start + n, token, found.floor, run.seq_id)[0] == alone[0][n]
    for run in runs:
        walker.passes.truncate(run.seq_id, run.start)
    return good
