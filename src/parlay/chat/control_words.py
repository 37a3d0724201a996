"""Control words that clients write, such as <|im_start|>, are text; a template's own are marks.

They are taken out before a conversation is rendered and put back, as text, where it is cut into
tokens. Knows words and parts of texts, neither templates nor tokens. A text without such a word is
left alone, to the last byte.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter
from typing import Any

Part = tuple[str, bool]  # text, and whether words in it are marks


class ControlWords:
    """One vocabulary's."""

    def __init__(self, words: Iterable[str]) -> None:
        known = sorted({word for word in words if word}, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, known))) if known else None

    def hidden(self) -> Hidden:
        """For one conversation: nobody can know what stands for its words."""
        return Hidden(self._pattern)


NO_WORDS = ControlWords(())


class Hidden:
    """The words of one conversation, out of its template's sight."""

    def __init__(self, pattern: re.Pattern[str] | None) -> None:
        self._pattern = pattern
        self._nonce = f"x{secrets.token_hex(12)}"
        self._places: dict[str, int] = {}

    def hide(self, value: Any) -> Any:
        """The same, with every word in every text of it replaced."""
        if isinstance(value, str):
            return value if self._pattern is None else self._pattern.sub(self._stand_in, value)
        if isinstance(value, dict):
            return {self.hide(key): self.hide(part) for key, part in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.hide(part) for part in value]
        return value

    def _stand_in(self, found: re.Match[str]) -> str:
        place = self._places.setdefault(found.group(), len(self._places))
        return f"{self._nonce}{place:06x}"

    def parts(self, rendered: str) -> list[Part]:
        """What a template made of it, in parts; text of either kind is kept together."""
        if not self._places or self._pattern is None:
            return [(rendered, True)]
        words = list(self._places)
        split = re.split(f"{self._nonce}([0-9a-f]{{6}})", rendered)  # every other one is a word
        pieces = [words[int(piece, 16)] if i % 2 else piece for i, piece in enumerate(split)]
        marked = [not i % 2 and bool(self._pattern.search(p)) for i, p in enumerate(pieces)]
        runs = groupby(zip(pieces, marked, strict=True), key=itemgetter(1))
        return [("".join(text for text, _ in run), marks) for marks, run in runs]
