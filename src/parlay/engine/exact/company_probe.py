"""Finds which passes over several sequences agree to the bit with a class of one sequence.

Knows only walks and classes. Every sequence of such a pass has as many rows as the others, and
every one of them is compared with itself alone: a row's place in the pass may decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from parlay.engine.exact.exactness import PAGE, ExactClass
from parlay.engine.exact.walking import Digest, WalkedRun, Walker
from parlay.timing.probe_text import probe_tokens

# Two short texts, since shapes can agree by chance in one, and a long one for a neighbour.
_SHORT, _OTHER, _LONG = 24, 9, PAGE + 8
_MOST_ROWS = 32  # over all sequences
_MOST_EACH = 8
_WIDEST_FLOOR = 4  # a class whose plain passes are wider is not one for many sequences
_FEW = (1, 2, 3, 4)  # rows of each sequence that stand for all, with the most there can be


class Together:
    """Sequences whose caches end where their runs start, tried alone and together."""

    def __init__(self, walker: Walker, runs: Sequence[WalkedRun]) -> None:
        self._walker = walker
        self._runs = runs
        self._seen: dict[tuple[int, int, int], list[list[Digest]]] = {}
        self._own: dict[tuple[int, int], list[Digest]] = {}

    def agreeing(self, found: ExactClass, n: int, rows: Sequence[int]) -> list[int]:
        """With how many rows each the first n of them get what the class gives them alone."""
        alone = [self._alone(found, run, max(rows)) for run in self._runs[:n]]
        few = [r for r in rows if r in _FEW or r == rows[-1]]
        good = [r for r in few if self._agrees(alone, r)]
        if good == few:
            return list(rows)
        others = (r for r in rows if r not in few)
        return sorted([*good, *(r for r in others if self._agrees(alone, r))])

    def _alone(self, found: ExactClass, run: WalkedRun, n: int) -> list[Digest]:
        key = (run.seq_id, found.floor)
        if len(self._own.get(key, ())) < n:
            tokens = run.tokens[:n]
            self._own[key] = list(self._walker.walk(run.start, tokens, found.floor, run.seq_id))
            self._walker.cut(run)
        return self._own[key]

    def _agrees(self, alone: Sequence[Sequence[Digest]], rows: int) -> bool:
        """One row real and the others padding, then all of them real."""
        return all(
            own == list(was[:n_real])
            for n_real in sorted({1, rows})
            for own, was in zip(self._pass(len(alone), rows, n_real), alone, strict=True)
        )

    def _pass(self, n: int, rows: int, n_real: int) -> list[list[Digest]]:
        """What each gets when the first n share a pass; every class asks for the same."""
        key = (n, rows, n_real)
        if key not in self._seen:
            runs = [replace(run, tokens=run.tokens[:n_real]) for run in self._runs[:n]]
            self._seen[key] = self._walker.steps(runs, rows)
            for run in runs:
                self._walker.cut(run)
        return self._seen[key]


class Company:
    """The shapes of several sequences that belong to classes, tried after short texts.

    Where there is one class only nothing is to be chosen: `hoped` leaves it to whoever first has
    several sequences to try them.
    """

    def __init__(self, walker: Walker, n_sequences: int, max_width: int) -> None:
        self._walker = walker
        self._n_sequences = n_sequences
        self._max_width = max_width  # of one sequence, as it was probed
        self._size = walker.passes.context_size
        self._most_rows = min(_MOST_ROWS, walker.chunk)  # a chunk fits in any batch

    def hoped(self, found: ExactClass) -> ExactClass:
        """The class with all shapes that may belong to it, none of them tried yet."""
        return replace(found, together=self._wanted(found))

    def join(self, classes: Sequence[ExactClass]) -> list[ExactClass]:
        """The classes with the shapes that belong to them."""
        if self._size < _SHORT + _MOST_ROWS:
            return list(classes)
        found = [self.hoped(c) for c in classes]
        for length in (_OTHER, _SHORT):
            together = Together(self._walker, self._read([length] * self._n_sequences))
            found = [_joined(own, together) for own in found]
        return [replace(c, uneven=self._uneven(c)) for c in found]

    def _wanted(self, found: ExactClass) -> frozenset[tuple[int, int]]:
        if found.floor > _WIDEST_FLOOR:
            return frozenset()
        most, widest = self._most_rows, min(max(found.widths), _MOST_EACH)
        counts = range(2, min(self._n_sequences, most) + 1)
        shapes = ((n, r) for n in counts for r in range(1, min(widest, most // n) + 1))
        return frozenset((n, r) for n, r in shapes if self._may_hold(found, n * r))

    def _may_hold(self, found: ExactClass, n_rows: int) -> bool:
        """A CPU's matrix products see rows, whosesoever they are: so many as one sequence may not
        have nobody may. Such rows mostly agree, so that a few passes do not tell."""
        whole = found.floor == 1 and found.limit >= self._max_width  # none differed
        return whole or n_rows in found.widths or self._walker.passes.steady

    def _read(self, lengths: Sequence[int]) -> list[WalkedRun]:
        """Texts so long in the caches; returns what follows them."""
        runs = []
        for s, length in enumerate(lengths):
            text = probe_tokens(length + _MOST_EACH, self._walker.passes.n_vocab, s + 1)
            self._walker.read(text[:length], s)
            runs.append(WalkedRun(s, length, text[length:], text[:length]))
        return runs

    def _uneven(self, found: ExactClass) -> frozenset[int]:
        """How many may share a pass though one has a longer text; tried with as many as can."""
        if not found.together or found.by_page or self._size < _LONG + _MOST_ROWS:
            return frozenset()
        n, rows = max(found.together)
        together = Together(self._walker, self._read([_SHORT] * (n - 1) + [_LONG]))
        agree = together.agreeing(found, n, [rows])
        return frozenset(n for n, _ in found.together) if agree else frozenset()


def _joined(own: ExactClass, together: Together) -> ExactClass:
    """The class with those of its shapes that hold after these texts, too."""
    counts = sorted({n for n, _ in own.together})
    shapes = frozenset(
        (n, rows) for n in counts for rows in together.agreeing(own, n, own.rows_for(n))
    )
    return replace(
        own, together=shapes, company=frozenset((n, own.place(_SHORT)) for n, _ in shapes)
    )
