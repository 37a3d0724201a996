"""White space by habit: how this answer has spaced its JSON so far, and so what it will do next.

Knows bytes of text; knows nothing of grammars or tokens. What came last at a place of the same kind
comes again: the marks around it, and first of all the name it stands after. How sure that is, is
counted: a place where two kinds come in turn is not believed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from parlay.decoding.indentation import Indentation

_SPACE = b" \t\r\n"
_OPENING, _CLOSING = b"{[", b"}]"
_VALUE = ord("v")  # stands for whatever a value or a key begins or ends with
_LONE = ord(";")  # a comma at the beginning of a line: the model meant to close a block there
# A value whose last mark came as a token of its own: a comma would have been written with it, so
# the model means to close the block.
_LAST = ord("e")
_ENDED = (_VALUE, _LAST)
_MARKS = b"{[]},:"
_QUOTE, _ESCAPE, _NEWLINE = ord('"'), ord("\\"), ord("\n")
_COLON, _COMMA, _LIST, _LIST_END = ord(":"), ord(","), ord("["), ord("]")
_DIGITS = b"0123456789"
_ENDS = b'"}]'  # of values
_BEGINNINGS = b'"{[-0tfn'  # of values
_LEAVES_STRING = re.compile(rb'["\\]').search
_MOST_HABITS, _LONGEST_NAME = 512, 64

_USUAL = 0.9  # as most people write
_LAST_TIME = 0.7  # as the last answer did: nothing is known of this one yet
_GOES_ON = 0.75  # a list has another item, where nothing is known of its like

_Place = tuple[int, int, bytes | None]  # the marks before and after; the name, or any


class Guess(NamedTuple):
    """What is likely to come, and how likely."""

    text: bytes
    sure: float


@dataclass(slots=True)
class _Habit:
    """What came last at one kind of place, and how often that was what had come before."""

    space: bytes | None  # None: a new line
    n_same: float = 1.0
    n_other: float = 0.0

    def see(self, space: bytes | None) -> None:
        if space == self.space:
            self.n_same, self.n_other = self.n_same + 1.0, 0.6 * self.n_other
        else:
            self.space = space
            self.n_same, self.n_other = 0.5 * self.n_same, self.n_other + 1.0

    @property
    def sure(self) -> float:
        return (self.n_same + 4.0) / (self.n_same + 3.0 * self.n_other + 4.2)


class Spacing:
    """Reads an answer's text; tells the white space it is likely to put before a byte."""

    def __init__(self, last: Spacing | None = None) -> None:
        """`last`: another answer, which this one is like for all that is known."""
        self._habits: dict[_Place, _Habit] = {}
        self._last = last._habits if last is not None else {}
        self._lines: Indentation = Indentation(None if last is None else last._lines.steps)
        self._lengths: dict[bytes, int] = {}  # of the last list after each name
        self._before: int | None = None  # the last mark outside of a string
        self._run = bytearray()  # white space since then
        self._in_string = self._escaped = self._in_number = self._in_name = False
        self._string = bytearray()  # the beginning of the last one
        self._name = b""  # of the value that is being read
        self._blocks: list[tuple[int, bytes, int]] = []  # bracket, name around it, commas in it
        self._n_items = 0  # commas in the innermost block
        self._learns = True
        # Hashes: of what was known before, and of what came otherwise than was likely.
        self._begun: int = 0 if last is None else last._begun
        self._news = 0
        # What somebody found out at places; it goes on to the answers that begin as this one did.
        self.found: dict[object, Any] = {} if last is None else last.found

    @property
    def place(self) -> tuple[object, ...]:
        """Equal where the same is likely to follow, as far as that is known here."""
        string = bytes(self._string) if self._in_string else None
        here = (self._before, bytes(self._run), self._name, string, self._in_number)
        known = self._news if self._habits else self._begun
        return (*here, self._around(), self._lines.line, known)

    def _around(self) -> tuple[object, ...]:
        """The blocks that the text is in, and whether each list is at its end, by its like."""
        found, n_items = [], self._n_items
        for bracket, name, n_before in reversed(self._blocks):
            found.append((bracket, name, bracket == _LIST and self._is_full(name, n_items)))
            n_items = n_before
        return tuple(found)

    def _is_full(self, name: bytes, n_commas: int) -> bool:
        """Whether a list has as many items as the last one after this name."""
        n = self._lengths.get(name)
        return n is not None and n_commas + 1 >= n

    @property
    def in_number(self) -> bool:
        return self._in_number and not self._run

    @property
    def has_habits(self) -> bool:
        """Whether anything is known of this answer itself."""
        return bool(self._habits)

    @property
    def in_string(self) -> bool:
        return self._in_string

    @property
    def in_text(self) -> bool:
        """Whether it is in a string that is a value: names are forced, as a rule."""
        return self._in_string and not self._in_name

    @property
    def name(self) -> bytes:
        """Of the value that is being read."""
        return self._name

    def kept(self) -> Spacing:
        """Its habits alone."""
        made = Spacing()
        made._habits, made._lines = self._habits, Indentation(self._lines.steps)
        spaces = frozenset([(place, habit.space) for place, habit in self._habits.items()])
        made._begun = hash((spaces, frozenset(self._lines.steps.items())))
        made.found = self.found
        return made

    def ahead(self) -> Spacing:
        """One that reads on from here what may come: it has the same habits and learns none."""
        made = Spacing.__new__(
            Spacing
        )  # several a round: to copy by protocol takes ten times as long
        made.__dict__.update(self.__dict__)
        made._run, made._string = bytearray(self._run), bytearray(self._string)
        made._lines, made._blocks = self._lines.ahead(), self._blocks.copy()
        made._learns = False
        return made

    # -- what is likely -------------------------------------------------------

    def guess(self, byte: int) -> Guess | None:
        """The rest of the white space before this byte; None: nothing is known of its kind yet."""
        before = self._before
        if self._in_string or before is None:
            return Guess(b"", _USUAL)
        mark, run = byte if byte in _MARKS else _VALUE, bytes(self._run)
        wanted = self._whole(before, mark)
        if wanted is not None and wanted.text.startswith(run):
            return Guess(wanted.text[len(run) :], max(wanted.sure, _USUAL) if run else wanted.sure)
        if not run:
            return None
        opened = before in _OPENING and mark not in _CLOSING
        return Guess(self._rest_of_line(run, opened), _USUAL)

    def goes_on(self) -> Guess:
        """Where a list may go on or end: what it does."""
        full = bool(self._blocks) and self._is_full(self._blocks[-1][1], self._n_items)
        return Guess(b"]" if full or self._before == _LAST else b",", _GOES_ON)

    @property
    def marks(self) -> bytes:
        """The bytes that may come here in JSON, white space aside; some of digits and letters."""
        before, in_list = self._before, bool(self._blocks) and self._blocks[-1][0] == _LIST
        if (
            before is None
            or before == _COLON
            or (before == _LIST or (in_list and before not in _ENDED))
        ):
            return _BEGINNINGS if before != _LIST else _BEGINNINGS + b"]"
        if before in _ENDED:
            digits = b"0" if self._in_number and not self._run else b""
            return digits + (b",]" if in_list else b",:}")
        return b'"}'

    def _rest_of_line(self, run: bytes, opened: bool) -> bytes:
        """White space began otherwise than it was wont to: a line has one of a few indents."""
        lines = self._lines
        likely = [lines.closing(), lines.line, lines.inside()]
        if opened:
            likely.reverse()
        whole = (b"\n" + indent for indent in likely)
        return next((line[len(run) :] for line in whole if line.startswith(run)), b"")

    def _whole(self, before: int, mark: int) -> Guess | None:
        for place in ((before, mark, self._name), (before, mark, None)):
            habit = self._habits.get(place)
            if habit is not None:
                return Guess(self._spelled(habit.space, before, mark), habit.sure)
        habit = None if self._habits else self._last.get((before, mark, None))
        if habit is not None:
            return Guess(self._spelled(habit.space, before, mark), _LAST_TIME)
        return self._by_kind(before, mark)

    def _by_kind(self, before: int, after: int) -> Guess | None:
        """A place not seen yet: as its like, or as most people write."""
        if before == _LAST:
            return self._whole(_VALUE, ord("}") if after == _COMMA else after)
        if after in (_COMMA, _COLON) or (before in _OPENING and after in _CLOSING):
            return Guess(b"", _USUAL)
        if before == _COLON:
            return Guess(self._latest(_COLON) or b"", _USUAL)
        like = [h for p, h in self._habits.items() if p[0] in _OPENING and p[1] == _VALUE]
        if not like or before == _LONE:
            return None
        if like[-1].space is None:
            return Guess(self._spelled(None, before, after), _USUAL)
        return Guess((self._latest(_COLON) if before == _COMMA else like[-1].space) or b"", _USUAL)

    def _latest(self, before: int) -> bytes | None:
        """What came after this mark, whatever came then."""
        seen = (habit.space for place, habit in self._habits.items() if place[0] == before)
        return next(seen, b" ")

    def _spelled(self, space: bytes | None, before: int, after: int) -> bytes:
        if space is not None:
            return space
        lines = self._lines
        if after in _CLOSING or after == _COMMA:
            return b"\n" + lines.closing()
        return b"\n" + (lines.inside() if before in _OPENING else lines.line)

    # -- what came ------------------------------------------------------------

    def read(self, text: bytes) -> None:
        """More of the answer: one token of it."""
        self.go_on(text)
        if self._ends_alone(text):
            self._before = _LAST

    def go_on(self, text: bytes) -> None:
        """More of the answer, however it will be cut into tokens."""
        if self._in_string and not self._escaped and not _LEAVES_STRING(text):
            self._string += text[: _LONGEST_NAME - len(self._string)]
            return
        for byte in text:
            if self._in_string:
                self._read_string(byte)
            elif byte in _SPACE:
                self._run.append(byte)
            else:
                self._read_mark(byte)

    def _ends_alone(self, text: bytes) -> bool:
        """Whether a token that was read is nothing but the end of a value."""
        ended = bool(text) and text[-1] in _ENDS and not self._in_string
        return ended and self._before == _VALUE and not text.strip(_SPACE + _ENDS)

    def _read_string(self, byte: int) -> None:
        if self._escaped:
            self._escaped = False
        elif byte == _ESCAPE:
            self._escaped = True
        elif byte == _QUOTE:
            self._in_string = False
            self._before = _VALUE
        elif len(self._string) < _LONGEST_NAME:
            self._string.append(byte)

    def _read_mark(self, byte: int) -> None:
        mark = byte if byte in _MARKS else _VALUE
        same = self._before == mark == _VALUE and not self._run
        new_line = _NEWLINE in self._run
        if self._learns and self._before is not None and not same:
            self._learn(self._before, mark, None if new_line else bytes(self._run))
        if new_line:
            indent = bytes(self._run).rpartition(b"\n")[2]
            self._lines.begin_line(indent, closing=mark in _CLOSING, learn=self._learns)
        self._run.clear()
        self._follow(byte)
        self._before = _LONE if mark == _COMMA and new_line else mark
        if byte in _CLOSING:
            self._before = _VALUE

    def _follow(self, byte: int) -> None:
        """Where that leaves the text: blocks, names, strings."""
        if byte in _OPENING:
            self._lines.open()
            self._blocks.append((byte, self._name, self._n_items))
            self._n_items = 0
        elif byte in _CLOSING and self._blocks:
            self._lines.close()
            bracket, self._name, n_before = self._blocks.pop()
            if bracket == _LIST and self._learns:
                self._learn_length(self._n_items + 1)
            self._n_items = n_before
        elif byte == _COMMA:
            self._n_items += 1
        elif byte == _COLON:
            self._name = bytes(self._string)
        self._in_string, self._in_number = byte == _QUOTE, byte in _DIGITS
        if self._in_string:
            in_list = bool(self._blocks) and self._blocks[-1][0] == _LIST
            self._in_name = self._before not in (_COLON, None) and not in_list
            self._string.clear()

    def _learn_length(self, n: int) -> None:
        if self._name in self._lengths or len(self._lengths) < _MOST_HABITS:
            self._lengths[self._name] = n

    def _learn(self, before: int, after: int, space: bytes | None) -> None:
        likely = self._whole(before, after) if self._habits else None
        if likely is None or likely.text != self._run:
            self._news = hash((self._news, before, after, self._name, space))
        for place in ((before, after, self._name), (before, after, None)):
            habit = self._habits.get(place)
            if habit is not None:
                habit.see(space)
            elif len(self._habits) < _MOST_HABITS:
                self._habits[place] = _Habit(space)
