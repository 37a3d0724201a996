"""Lines and blocks of an answer: how far the next line is likely to be indented.

Knows white space and how deep brackets stand; knows nothing of what is between them. A line is
taken from the one before it, and not from the depth: a model that meant to close a block and was
not let goes on as if it had.
"""

from __future__ import annotations

_USUAL = b"  "  # one step, where nothing is known


class Indentation:
    """Follows lines, and brackets that open and close."""

    def __init__(self, steps: dict[int, bytes] | None = None) -> None:
        """`steps`: by depth, how much deeper the lines of a block were."""
        self.line = b""  # the current one's white space
        self.steps = dict(steps or {})
        self._blocks: list[tuple[bytes, bytes | None]] = []  # the line of each, and its first one

    def ahead(self) -> Indentation:
        """One that goes on from here by itself."""
        made = Indentation.__new__(Indentation)
        made.__dict__.update(self.__dict__)
        made._blocks = self._blocks.copy()
        return made

    @property
    def depth(self) -> int:
        return len(self._blocks)

    def open(self) -> None:
        self._blocks.append((self.line, None))

    def close(self) -> None:
        if self._blocks:
            self._blocks.pop()

    def begin_line(self, indent: bytes, *, closing: bool, learn: bool) -> None:
        """A line that begins with so much white space; `closing`: and with the bracket that ends
        the block, so that it is no line of it."""
        if self._blocks and self._blocks[-1][1] is None and not closing:
            opened = self._blocks[-1][0]
            self._blocks[-1] = (opened, indent)
            if learn and indent.startswith(opened):
                self.steps[self.depth] = indent[len(opened) :]
        self.line = indent

    def inside(self) -> bytes:
        """The first line of the block that was just opened."""
        steps = self.steps
        known = steps.get(self.depth, steps.get(max(steps, default=0), _USUAL))
        return self.line + known

    def closing(self) -> bytes:
        """The line of the bracket that closes this block: as much less deep than the current line
        as the block's own line was less deep than its first."""
        opened, first = self._blocks[-1] if self._blocks else (b"", None)
        if first is None:
            return opened
        n = max(0, len(opened) + len(self.line) - len(first))
        return max(self.line, opened, key=len)[:n]
