"""Where a JSON object ends, in text that arrives in pieces.

Counts brackets and strings; whether the JSON is otherwise right is not its business.
"""

from __future__ import annotations

import re

_NEXT = re.compile(r'["{}\[\]]')
_IN_STRING = re.compile(r'["\\]')


class JsonSpan:
    """One value that begins with a bracket; `depth` brackets may be open already."""

    def __init__(self, depth: int = 0) -> None:
        self._depth = depth
        self._in_string = False
        self._escaped = False
        self.over = False

    @property
    def between(self) -> bool:
        """Whether the text so far ends outside of any string."""
        return not self._in_string

    def push(self, text: str) -> int:
        """Take text; how much of it belongs to the value."""
        at = 0
        while at < len(text) and not self.over:
            at = self._skip_string(text, at) if self._in_string else self._skip(text, at)
        return at

    def _skip_string(self, text: str, at: int) -> int:
        if self._escaped:
            self._escaped = False
            return at + 1
        found = _IN_STRING.search(text, at)
        if found is None:
            return len(text)
        self._escaped = found.group() == "\\"
        self._in_string = self._escaped
        return found.end()

    def _skip(self, text: str, at: int) -> int:
        found = _NEXT.search(text, at)
        if found is None:
            return len(text)
        mark = found.group()
        if mark == '"':
            self._in_string = True
        else:
            self._depth += 1 if mark in "{[" else -1
            self.over = self._depth <= 0
        return found.end()
