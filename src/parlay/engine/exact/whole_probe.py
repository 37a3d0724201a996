"""Finds out cheaply whether all passes agree to the bit, prompts' chunks too, and make one class.

Knows only walks. One text is stepped through in every way, and each row is compared with what
another way gave there. What mostly differs comes first: where passes do differ, little is spent
here before others ask which of them agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from parlay.engine.exact.exactness import PAGE, ExactClass, band, n_pages
from parlay.engine.exact.signing import N_BEFORE, N_SIGNED, signed
from parlay.engine.exact.walking import Digest, Walker
from parlay.timing.probe_text import probe_tokens

_N_PATH = 65  # tokens of which every row is known
_FIRST = 3  # widths up to here mostly tell a file whose passes differ
_FEW = 5  # and up to here they stand for all in a long text, with the widest
_SMALL_CHUNK = 19  # of a prompt; it ends in the middle of whatever kernels take at once
_N_CACHED = 4  # rows that read what a large chunk left in the cache
_BEFORE_PAGE = 4  # tokens that a long text lacks to a page: passes after it read one more or not
_N_MIXED = 8  # tokens of a walk in which widths and padding change from pass to pass


class WholeProbe:
    """The questions, in an order that ends soon where the answer is no."""

    def __init__(self, walker: Walker, max_rows: int, wide: int) -> None:
        """Passes with up to `max_rows` rows have to agree; those of `wide` rows may."""
        self._walker = walker
        self._max_rows = max_rows
        self._wide = max(max_rows, min(wide, walker.chunk))
        self._n_path = max(_N_PATH, self._wide)
        self._size = walker.passes.context_size
        self._known: dict[int, Digest] = {}  # by place in the text

    def find(self) -> ExactClass | None:
        """The class of all passes; None: they differ, or the context is too short to tell."""
        longest = max(self._n_path, self._n_read) + self._max_rows
        if self._max_rows > _N_PATH // 2 or longest > self._size:
            return None
        asked = (self._first_agree, self._path_agrees, self._widths_agree, self._prompts_agree)
        if not all(agree() for agree in asked):
            return None
        return ExactClass(
            frozenset(range(1, self._wide + 1)),
            prompts=True,
            bands=frozenset({0, band(self._n_read + _BEFORE_PAGE) if self._has_long else 0}),
            digest=signed(self._known[N_BEFORE + i] for i in range(N_SIGNED)),
        )

    # -- widths ---------------------------------------------------------------

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
                return self._agree(0, rows) and self._in_turn(wide, self._widest_until_end(wide))
            self._wide = n
        return self._in_turn(0, self._widest_until_end(0))

    def _widest_until_end(self, at: int) -> list[int]:
        return [self._max_rows] * -((at - self._n_path) // self._max_rows)

    def _widths_agree(self) -> bool:
        """Every width once, after a prompt; those that would pass the text's known part go back."""
        n_read = min(_SMALL_CHUNK, self._walker.chunk)
        if not self._agree(n_read - 1, [self._walker.end(self._text[:n_read])]):
            return False
        at = n_read
        for width in range(_FIRST + 1, self._max_rows):
            back = min(at, self._n_path - width)
            if not self._passes(back, width):
                return False
            at = back + width
        return True

    # -- prompts and longer texts ---------------------------------------------

    def _prompts_agree(self) -> bool:
        """Chunks, of which only the last logits are asked for, leave what other passes leave."""
        n = self._n_read
        ends = self._walker.read(self._text[:n])
        first = min(n, self._walker.chunk)
        if not (self._agree(n - 1, ends[-1:]) and self._agree(first - 1, ends[:1])):
            return False
        if self._has_long and not self._long_agrees():
            return False
        cached = min(n, self._n_path) - _N_CACHED
        return (
            self._passes(n - 1, 1)
            and self._passes(first - 1, 1)
            and self._passes(cached, _N_CACHED)
        )

    def _long_agrees(self) -> bool:
        """After a text at whose end some passes read a page more than others."""
        start, few = self._n_long, [*range(1, min(_FEW, self._max_rows) + 1)]
        if not (self._in_turn(start, few) and self._passes(start, self._max_rows)):
            return False
        if not self._passes(start + _BEFORE_PAGE + 1, self._max_rows):
            return False
        self._walker.rewind(self._text[:start])
        tokens = self._text[start : start + _N_MIXED]
        return self._agree(start, self._walker.mixed(start, tokens, [*few, self._max_rows]))

    @property
    def _n_read(self) -> int:
        """Tokens of a prompt that is read in chunks, of which the first is as large as they get."""
        return self._n_long if self._has_long else self._n_chunk

    @property
    def _n_chunk(self) -> int:
        return min(self._walker.chunk, self._size - self._max_rows - 1)

    @property
    def _n_long(self) -> int:
        return n_pages(self._n_chunk + _BEFORE_PAGE) * PAGE - _BEFORE_PAGE

    @property
    def _has_long(self) -> bool:
        return self._n_long + _N_MIXED + self._max_rows <= self._size  # of all passes after it

    # -- walks ----------------------------------------------------------------

    @cached_property
    def _text(self) -> Sequence[int]:
        return probe_tokens(self._size, self._walker.passes.n_vocab)

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
