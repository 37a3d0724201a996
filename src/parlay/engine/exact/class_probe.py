"""Finds the classes of passes over one sequence that agree to the bit, by trying.

Knows only walks; nothing but a probe on this build, device, file and cache type can tell. Ways of
stepping through the same tokens with equal logits everywhere, with real rows and with padding, form
a class.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, groupby

from parlay.decoding.span import Passes
from parlay.engine.exact.company_probe import Company, Together
from parlay.engine.exact.exactness import PAGE, SINGLE, ExactClass, n_pages
from parlay.engine.exact.signing import signature
from parlay.engine.exact.walking import Budget, Digest, OutOfTime, WalkedRun, Walker
from parlay.engine.exact.whole_probe import WholeProbe
from parlay.errors import ParlayError
from parlay.timing.probe_text import probe_tokens

# A shape must agree in unrelated contexts, since one can agree by chance (two are too few, as a
# tiny model at Q4_K_M shows), and past the first page.
_SHORT, _OTHER, _LONG = 24, 9, 264
_N_DOUBTED = 13  # more places, where agreement is seen to be chance
_N_MIXED = 12  # tokens of a walk in which widths and padding change from pass to pass
# On a GPU the fourth pass of a shape is the first that costs what later ones will.
_N_UNTIL_STEADY = 4


@dataclass(frozen=True, slots=True)
class Probe:
    """What a probe found, and whether it had the time to look at everything."""

    classes: tuple[ExactClass, ...]
    complete: bool


@dataclass(frozen=True, slots=True)
class _Text:
    prefix: Sequence[int]
    rest: Sequence[int]

    @property
    def start(self) -> int:
        return len(self.prefix)


def probe(
    passes: Passes,
    max_rows: int,
    n_sequences: int,
    chunk: int = 16,
    wide: int = 0,
    budget_s: float = float("inf"),
) -> Probe:
    """The classes of passes with up to `max_rows` rows, within a time budget.

    Where all of those agree, and prompts' chunks with them, so do passes of up to `wide` rows.
    """
    walker = Walker(passes, chunk, Budget(budget_s))
    try:
        return _Probing(walker, max_rows, n_sequences, wide).find()
    finally:
        for seq_id in range(n_sequences):
            passes.clear(seq_id)


def still_holds(passes: Passes, found: ExactClass, chunk: int = 16, seq_id: int = 0) -> bool:
    """Whether a class probed earlier gives the same logits now; a few passes tell."""
    try:
        walker = Walker(passes, chunk, Budget(float("inf")))
        return found.digest == signature(walker, found, seq_id)
    finally:
        passes.clear(seq_id)


def reaches(
    passes: Passes, found: ExactClass, placed: Sequence[tuple[int, int]], budget_s: float
) -> ExactClass:
    """The class with what it is found to hold for at the ends of these sequences' own texts, given
    by id and length; their caches are left as they were. Without time nothing is found, nor where
    a pass fails: what cannot be tried is not known to hold."""
    walker = Walker(passes, 1, Budget(budget_s))
    n_vocab = passes.n_vocab
    runs = [WalkedRun(s, n, probe_tokens(_N_MIXED, n_vocab, n)) for s, n in placed]
    try:
        if max(n for _, n in placed) + _N_MIXED + max(found.widths) > passes.context_size:
            return found
        return _further(walker, found, runs)
    except (OutOfTime, ParlayError):
        return found
    finally:
        for run in runs:
            walker.cut(run)


def _further(walker: Walker, found: ExactClass, runs: Sequence[WalkedRun]) -> ExactClass:
    if len(runs) > 1:
        return _further_together(walker, found, runs)
    bands = found.bands | {found.place(runs[0].start)}
    widths = _ends(found.widths) if found.by_page else _few(found.widths)
    return replace(found, bands=bands) if _agrees(walker, runs[0], widths) else found


def _further_together(walker: Walker, found: ExactClass, runs: Sequence[WalkedRun]) -> ExactClass:
    """The first time that so many are tried, what does not hold leaves the class for good."""
    n, rows = len(runs), found.rows_for(len(runs))
    even = len({n_pages(run.start + found.floor) for run in runs}) == 1
    if found.by_page and not even:
        return found
    good = Together(walker, runs).agreeing(found, n, rows)
    if good != rows:
        first = even and all(number != n for number, _ in found.company)
        lost = {(n, r) for r in rows if r not in good}
        found = replace(found, together=found.together - lost) if first else found
        if not first or not good:
            return found
    company = found.company | {(n, found.place(run.start)) for run in runs}
    return replace(found, company=company, uneven=found.uneven | (set() if even else {n}))


class _Probing:
    """The questions, in order of importance."""

    def __init__(self, walker: Walker, max_rows: int, n_sequences: int, wide: int) -> None:
        self._walker = walker
        self._wide = wide
        self._max_rows = max_rows
        self._n_sequences = n_sequences
        self._size = walker.passes.context_size
        # What padded plain passes gave, by the length of the text before them and their rows.
        self._plain: dict[tuple[int, int], list[Digest]] = {}

    def find(self) -> Probe:
        """One class where everything agrees; else those there are."""
        fitting = [n for n in (_SHORT, _OTHER, _LONG) if n + self._max_rows <= self._size]
        if not fitting:
            return Probe((SINGLE,), complete=True)
        try:
            whole = self._whole()
        except OutOfTime:
            return Probe((SINGLE,), complete=False)
        return self._of_one(whole) if whole is not None else self._of_several(fitting)

    def _whole(self) -> ExactClass | None:
        """On a GPU passes differ, or agree on a page alone."""
        if self._walker.passes.steady:
            return None
        return WholeProbe(self._walker, self._max_rows, self._wide).find()

    def _of_one(self, whole: ExactClass) -> Probe:
        """Nothing is to be chosen: what several sequences have waits until there are some."""
        try:
            bands = whole.bands | set(self._long_bands(whole))
            found, complete = replace(whole, bands=bands), True
        except OutOfTime:
            found, complete = whole, False
        several = self._n_sequences > 1 and complete
        return Probe(tuple(self._in_company([found]) if several else [found]), complete)

    def _of_several(self, fitting: Sequence[int]) -> Probe:
        groups, probed = self._agreeing(fitting)
        if len(probed) < min(2, len(fitting)):
            return Probe((SINGLE,), complete=False)
        by_page = self._walker.passes.steady
        classes = [ExactClass(group, paged=by_page, by_page=by_page) for group in groups]
        classes = [replace(c, bands=frozenset(map(c.place, probed))) for c in classes]
        try:
            classes = self._described(classes)
            if self._n_sequences > 1:
                classes = self._in_company(classes)
            complete = probed[-1] == fitting[-1]
        except OutOfTime:
            complete = False
        return Probe(tuple(classes), complete)

    def _in_company(self, classes: Sequence[ExactClass]) -> list[ExactClass]:
        company = Company(self._walker, self._n_sequences, self._max_rows)
        if len(classes) == 1 and self._walker.cuts:
            return [company.hoped(found) for found in classes]
        return company.join(classes)

    def _agreeing(self, fitting: Sequence[int]) -> tuple[list[frozenset[int]], list[int]]:
        """Widths that agree in every context there was time for, and which these were."""
        groups, probed = list(self._may_agree), list[int]()
        for n_prefix in fitting:
            text = self._text(n_prefix)
            try:
                self._walker.read(text.prefix)
                groups = [part for group in groups for part in self._split(text, group)]
            except OutOfTime:
                break
            probed.append(n_prefix)
        if not probed or len(self._may_agree) > 1 or not self._by_chance:
            return groups, probed
        try:
            return self._doubted(groups, probed[-1]), probed
        except OutOfTime:
            return groups, probed[:1]  # too few to believe them

    @property
    def _may_agree(self) -> Sequence[frozenset[int]]:
        """Widths that may be in one class. A GPU has other kernels from a power of two on: 16 and
        17 rows of some files agree after most texts, by chance, and after others they do not."""
        every = range(1, self._max_rows + 1)
        if not self._walker.passes.steady:
            return [frozenset(every)]
        octaves = groupby(every, key=lambda width: (width - 1).bit_length())
        return [frozenset(widths) for _, widths in octaves]

    @property
    def _by_chance(self) -> bool:
        """Whether classes that differ gave the same row somewhere: then agreement proves little."""
        pairs = combinations(self._plain.items(), 2)
        same_text = ((a, b) for ((start, _), a), ((other, _), b) in pairs if start == other)
        return any(x == y for a, b in same_text for x, y in zip(a, b, strict=False))

    def _doubted(self, groups: Sequence[frozenset[int]], start: int) -> list[frozenset[int]]:
        """The groups, or parts of them, after many more texts: of a pass perhaps one row tells that
        it differs (the one beyond whole groups of four), and that one agrees every other time."""
        found, walker, n = list(groups), self._walker, self._max_rows
        tokens = probe_tokens(self._size, walker.passes.n_vocab, start)  # of the text in the cache
        walker.rewind(tokens[:start])
        for _ in range(_N_DOUBTED):  # each goes on from what the one before left
            at = walker.passes.length(0)
            text = _Text(tokens[:at], tokens[at : at + n])
            if len(text.rest) < n:
                break
            found = [part for group in found for part in self._unless_alike(text, group)]
        return found

    def _unless_alike(self, text: _Text, group: frozenset[int]) -> list[frozenset[int]]:
        """The group, if its passes over real rows give what its smallest ones do."""
        if len(group) == 1:
            return [group]
        narrow, walker = min(group), self._walker
        known = self._full(text, narrow)
        while len(known) < max(group):
            tokens = text.rest[len(known) : len(known) + narrow]
            known = [*known, *walker.step(text.start + len(known), tokens, narrow)]
        wider = sorted(group - {narrow})
        alike = all(self._full(text, width) == known[:width] for width in wider)
        return [group] if alike else self._parts(text, group)

    def _text(self, n_prefix: int) -> _Text:
        n = n_prefix + max(self._max_rows, _N_MIXED)
        tokens = probe_tokens(n, self._walker.passes.n_vocab, n_prefix)
        return _Text(tokens[:n_prefix], tokens[n_prefix:])

    # -- widths ---------------------------------------------------------------

    def _split(self, text: _Text, group: frozenset[int]) -> list[frozenset[int]]:
        """The parts of a group that agree among themselves after this text."""
        few = group if text.start == _SHORT else _few(group)
        parts = self._parts(text, few)
        if few != group:  # a few stand for all only as long as they agree
            parts = [group] if parts == [few] else self._parts(text, group)
        return [kept for part in parts for kept in self._in_any_order(text, part)]

    def _parts(self, text: _Text, group: frozenset[int]) -> list[frozenset[int]]:
        """By passes whose rows are all real, each compared with one real row a pass."""
        seen = {width: self._full(text, width) for width in sorted(group)}
        left, found = sorted(group), []
        while left:
            first = left[0]
            same = [w for w in left if seen[w][0] == seen[first][0]]
            alone = self._one_by_one(text, first, seen[first], max(same))
            agree = frozenset(w for w in same if alone[:w] == seen[w])
            if agree:
                found.append(agree)
            left = [w for w in left if w not in (agree or {first})]
        return found

    def _full(self, text: _Text, width: int) -> list[Digest]:
        for _ in range(_N_UNTIL_STEADY if self._walker.passes.steady else 1):
            self._walker.rewind(text.prefix)
            rows = self._walker.step(text.start, text.rest[:width], width)
        return rows

    def _one_by_one(self, text: _Text, width: int, seen: Sequence[Digest], n: int) -> list[Digest]:
        """The first n tokens, one real row a pass; nothing if its own full pass differs."""
        found: list[Digest] = []
        if not self._last_agrees(text, width, seen):
            return found
        self._walker.rewind(text.prefix)
        for row in self._walker.walk(text.start, text.rest[:n], width):
            if len(found) < width and row != seen[len(found)]:
                return []
            found.append(row)
        self._plain[text.start, width] = found
        return found

    def _last_agrees(self, text: _Text, width: int, seen: Sequence[Digest]) -> bool:
        """The last row of a full pass, alone in one: most widths that are in no class differ there,
        which spares them a walk."""
        if width == 1 or not self._walker.cuts:
            return True
        self._full(text, width)
        at = text.start + width - 1
        self._walker.passes.truncate(0, at)
        return self._walker.step(at, text.rest[width - 1 : width], width) == seen[-1:]

    def _in_any_order(self, text: _Text, group: frozenset[int]) -> list[frozenset[int]]:
        """The group, if its widths may follow each other at will; else the parts that may."""
        if self._mixes(text, group):
            return [group]
        kept: frozenset[int] = frozenset()
        for width in sorted(group) if len(group) > 1 else ():
            if self._mixes(text, kept | {width}):
                kept |= {width}
        if not kept:
            return []
        return [kept, *(self._in_any_order(text, group - kept) if group - kept else [])]

    def _mixes(self, text: _Text, group: frozenset[int]) -> bool:
        """Whether widths and padding may change from pass to pass."""
        walker, tokens = self._walker, text.rest[:_N_MIXED]
        plain = self._plain.get((text.start, min(group)), [])[:_N_MIXED]
        if len(plain) < _N_MIXED:
            walker.rewind(text.prefix)
            plain = list(walker.walk(text.start, tokens, min(group)))
        walker.rewind(text.prefix)
        return plain == list(walker.mixed(text.start, tokens, sorted(group)))

    # -- what else holds ------------------------------------------------------

    def _described(self, classes: Sequence[ExactClass]) -> list[ExactClass]:
        found = [replace(c, paged=self._is_paged(c)) for c in classes]
        found = [replace(c, bands=c.bands | set(self._long_bands(c))) for c in found]
        return [replace(c, digest=signature(self._walker, c)) for c in found]

    def _is_paged(self, found: ExactClass) -> bool:
        """Whether a row changes when its pass reads a page more than its own place needs; that it
        does not after one text says nothing of others where the pages decide."""
        if found.by_page:
            return True
        widest, start = max(found.widths), PAGE - found.floor
        if widest == found.floor or _LONG + self._max_rows > self._size:
            return False  # no pass can
        text = self._text(_LONG).prefix  # which is in the cache now
        self._walker.rewind(text[:start])
        plain = self._walker.step(start, text[start : start + 1], found.floor)
        self._walker.rewind(text[:start])
        return self._walker.step(start, text[start : start + 1], widest) != plain

    def _long_bands(self, found: ExactClass) -> Iterator[int]:
        """A cache that cannot be cut anywhere cannot be probed in the middle of an answer."""
        length = 2 * PAGE + 8
        while length + self._max_rows <= self._size and not self._walker.cuts:
            text = self._text(length)
            self._walker.read(text.prefix)
            if not self._mixes(text, found.widths):
                return
            yield found.place(length)
            length *= 2


def _agrees(walker: Walker, run: WalkedRun, widths: frozenset[int]) -> bool:
    """Whether all widths do at the end of a sequence's own text, whose tokens nobody has here: as
    many real rows as there are, and what a plain pass then reads in the cache."""
    plain = list(walker.walk(run.start, run.tokens, min(widths), run.seq_id))
    return all(plain[: len(rows)] == rows for rows in _in_widths(walker, run, widths))


def _in_widths(walker: Walker, run: WalkedRun, widths: frozenset[int]) -> Iterator[list[Digest]]:
    for width in sorted(widths):
        walker.cut(run)
        n = min(width, len(run.tokens) - 1)
        rows = walker.step(run.start, run.tokens[:n], width, run.seq_id)
        after = walker.step(run.start + n, run.tokens[n : n + 1], min(widths), run.seq_id)
        yield rows + after


def _ends(group: frozenset[int]) -> frozenset[int]:
    """Of one kernel's widths."""
    return frozenset({min(group), max(group)})


def _few(group: frozenset[int]) -> frozenset[int]:
    """Widths that stand for all of a group, once all of them agreed in one context."""
    return frozenset(sorted(group)[:5]) | {max(group)}
