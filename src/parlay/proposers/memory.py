"""Texts of earlier answers, apart by owner: nobody is drafted what another was told.

Bounded in tokens over all owners; can be kept in a file. Knows tokens, and owners by a name that
tells nothing of their key.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parlay import store
from parlay.proposers.index import SEPARATOR, Index, Match

_VERSION = 1
MAX_OWNERS = 256


@dataclass(frozen=True, slots=True)
class Remembered:
    """What is remembered, in numbers."""

    n_owners: int
    n_tokens: int
    max_tokens: int


class Memory:
    """One past for each owner; of all, the owner who came back longest ago goes first."""

    def __init__(self, max_tokens: int, sizes: Sequence[int]) -> None:
        self._max_tokens = max_tokens
        self._sizes = tuple(sizes)
        self._pasts: dict[str, _Past] = {}  # the one used last comes last
        self.told = Remembered(0, 0, max_tokens)  # replaced whole: other threads read it

    def add(self, owner: str, tokens: Sequence[int]) -> None:
        """Learn a text: its end, where the whole of it is too long."""
        past = self._pasts.pop(owner, None) or _Past(self._max_tokens, self._sizes)
        self._pasts[owner] = past
        past.add(tokens)
        self._count()
        while len(self._pasts) > 1 and (
            len(self._pasts) > MAX_OWNERS or self.told.n_tokens > self._max_tokens
        ):
            del self._pasts[next(iter(self._pasts))]
            self._count()

    def match(self, owner: str, tail: array[int]) -> Match | None:
        """The longest end of a text that a past one of this owner went on from."""
        past = self._pasts.get(owner)
        return None if past is None else past.match(tail)

    def forget(self, owner: str | None = None) -> None:
        """One owner's texts, those of its named conversations included; or all."""
        for name in list(self._pasts):
            if owner is None or name == owner or name.startswith(f"{owner}/"):
                del self._pasts[name]
        self._count()

    def _count(self) -> None:
        n_tokens = sum(len(past) for past in self._pasts.values())
        self.told = Remembered(len(self._pasts), n_tokens, self._max_tokens)

    # -- on disk --------------------------------------------------------------

    def save(self, path: Path) -> None:
        """Everything, in one step: a file is whole or is not there."""
        owners = {owner: past.texts for owner, past in self._pasts.items()}
        with store.whole(path) as part:
            part.write_text(json.dumps({"parlay_memory": _VERSION, "owners": owners}), "utf-8")

    def load(self, record: Mapping[str, Any]) -> bool:
        """What `save` wrote; what is none of it is left out. Whether it was a memory at all."""
        owners = record.get("owners")
        if record.get("parlay_memory") != _VERSION or not isinstance(owners, dict):
            return False
        for owner, texts in owners.items():
            for text in texts if isinstance(texts, list) else ():
                if isinstance(text, list) and all(isinstance(t, int) and t >= 0 for t in text):
                    self.add(str(owner), text)
        return True


class _Past:
    """Past texts up to a bound, in two generations: the older goes when the newer is full."""

    def __init__(self, max_tokens: int, sizes: Sequence[int]) -> None:
        self._half = max_tokens // 2
        self._sizes = sizes
        self._older, self._newer = Index(sizes), Index(sizes)

    def __len__(self) -> int:
        return len(self._older) + len(self._newer)

    @property
    def texts(self) -> list[list[int]]:
        """One list for each text, the oldest first."""
        found: list[list[int]] = [[]]
        for token in (*self._older.text, *self._newer.text):
            if token == SEPARATOR:
                found.append([])
            else:
                found[-1].append(token)
        return [text for text in found if text]

    def add(self, tokens: Sequence[int]) -> None:
        kept = tokens[max(0, len(tokens) - self._half) :]
        if len(self._newer) + len(kept) > self._half:
            self._older, self._newer = self._newer, Index(self._sizes)
        self._newer.feed([*kept, SEPARATOR])

    def match(self, tail: array[int]) -> Match | None:
        found = [_past_match(texts, tail) for texts in (self._newer, self._older)]
        return max(filter(None, found), key=lambda match: match.length, default=None)


def _past_match(texts: Index, tail: array[int]) -> Match | None:
    length, ends = texts.match_of(tail)
    goes_on = any(texts.text[end] != SEPARATOR for end in ends)
    return Match(texts.text, length, ends) if goes_on else None
