"""Stop strings: find them in text that arrives in pieces, and hold back what might become one.

Knows neither tokens nor end-of-text marks: those end a sequence before its text gets here.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Feed pieces in; what is safe to show comes out."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = tuple(s for s in strings if s)
        self._held = ""
        self.hit: str | None = None

    def push(self, piece: str) -> str:
        """Take a piece of text; return what can be shown. Sets `hit` at a stop string."""
        if not self._strings or self.hit is not None:
            return "" if self.hit is not None else piece
        text = self._held + piece
        # The one that is complete first wins: it would have, had the text come in smaller pieces.
        found = [(text.find(s) + len(s), text.find(s), s) for s in self._strings if s in text]
        if found:
            _, at, self.hit = min(found)
            self._held = ""
            return text[:at]
        keep = self._overlap(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """What was held back, once no more text will come."""
        held, self._held = self._held, ""
        return held

    def _overlap(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        longest = min(len(text), max(len(s) for s in self._strings) - 1)
        for n in range(longest, 0, -1):
            if any(s.startswith(text[-n:]) for s in self._strings):
                return n
        return 0
