"""White space by habit: how this answer has spaced its JSON so far, and so what it will do next.

Knows bytes of text; knows nothing of grammars or tokens.
"""

from __future__ import annotations

from copy import copy

_SPACE = b" \t\r\n"
_OPENING, _CLOSING = b"{[", b"}]"
_VALUE = ord("v")  # stands for whatever a value or a key begins or ends with
_MARKS = b"{[]},:"
_QUOTE, _ESCAPE, _NEWLINE = ord('"'), ord("\\"), ord("\n")
_COLON, _COMMA = ord(":"), ord(",")

_Place = tuple[int, int]  # the mark before and the mark after the white space


class Spacing:
    """Reads an answer's text; tells the white space it is likely to put before a byte."""

    def __init__(self, last: Spacing | None = None) -> None:
        """`last`: another answer, which this one is like for all that is known."""
        self._habits: dict[_Place, bytes | None] = {}  # None: a new line, indented by depth
        self._last = last._habits if last is not None else {}
        self._unit: bytes = last._unit if last is not None else b""  # one level of indent
        self._indents: dict[int, bytes] = {}  # by depth, the last one: some are irregular
        self._depth = 0
        self._before: int | None = None  # the last mark outside of a string
        self._run = bytearray()  # white space since then
        self._in_string = self._escaped = False
        self._learns = True

    @property
    def has_habits(self) -> bool:
        """Whether anything is known of this answer itself."""
        return bool(self._habits)

    def kept(self) -> Spacing:
        """Its habits alone."""
        made = Spacing()
        made._habits, made._unit = self._habits, self._unit
        return made

    def ahead(self) -> Spacing:
        """One that reads on from here what may come: it has the same habits and learns none."""
        made = copy(self)
        made._run, made._learns = bytearray(self._run), False
        return made

    def read(self, text: bytes) -> None:
        """More of the answer."""
        for byte in text:
            if self._in_string:
                self._read_string(byte)
            elif byte in _SPACE:
                self._run.append(byte)
            else:
                self._read_mark(byte)

    def guess(self, byte: int) -> bytes | None:
        """The rest of the white space before this byte; None: nothing is known of its kind yet."""
        if self._in_string:
            return b""
        wanted = self._whole(byte)
        if wanted is None:
            return None
        run = bytes(self._run)
        return wanted[len(run) :] if wanted.startswith(run) else b""

    def _whole(self, byte: int) -> bytes | None:
        mark = byte if byte in _MARKS else _VALUE
        if self._before is None:
            return b""
        place = (self._before, mark)
        habits = self._habits or self._last
        if place not in habits:
            return self._by_kind(self._before, mark)
        habit = habits[place]
        return self._indent(mark) if habit is None else habit

    def _by_kind(self, before: int, after: int) -> bytes | None:
        """A place not seen yet: as its like, or as most people write."""
        if after in (_COMMA, _COLON) or (before in _OPENING and after in _CLOSING):
            return b""
        if before == _COLON:
            seen = (habit for place, habit in self._habits.items() if place[0] == _COLON)
            return next(seen, b" ") or b""
        opened = next(
            (self._habits[p] for p in self._habits if p[0] in _OPENING and p[1] == _VALUE), b"?"
        )
        if opened == b"?":
            return None
        if opened is None:
            return self._indent(after)
        return self._habits.get((_COLON, _VALUE), b" ") if before == _COMMA else opened

    def _indent(self, after: int) -> bytes:
        depth = self._depth - (after in _CLOSING)
        return b"\n" + self._indents.get(depth, self._unit * depth)

    def _read_string(self, byte: int) -> None:
        if self._escaped:
            self._escaped = False
        elif byte == _ESCAPE:
            self._escaped = True
        elif byte == _QUOTE:
            self._in_string = False
            self._before = _VALUE

    def _read_mark(self, byte: int) -> None:
        mark = byte if byte in _MARKS else _VALUE
        same = self._before == mark == _VALUE and not self._run
        if self._learns and self._before is not None and not same:
            self._learn((self._before, mark))
        self._run.clear()
        if byte in _OPENING:
            self._depth += 1
        elif byte in _CLOSING:
            self._depth = max(0, self._depth - 1)
        self._in_string = byte == _QUOTE
        self._before = _VALUE if byte in _CLOSING else mark

    def _learn(self, place: _Place) -> None:
        depth = self._depth - (place[1] in _CLOSING)
        if _NEWLINE not in self._run:
            self._habits[place] = bytes(self._run)
            return
        indent = self._indents[depth] = bytes(self._run).rpartition(b"\n")[2]
        if depth > 0 and len(indent) % depth == 0:
            self._unit = indent[: len(indent) // depth]
        self._habits[place] = None
