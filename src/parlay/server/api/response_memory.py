"""Responses that may be gone on from: bounded, and each client's own.

Knows conversations as chat's messages; knows neither HTTP nor models. Nothing is kept on disk.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

MAX_CHARACTERS = 64_000_000  # over all that is kept

Turns = list[dict[str, Any]]


class ResponseMemory:
    """The latest responses; the oldest go first."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._kept: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._n_characters = 0

    def put(self, key: str, response_id: str, turns: Sequence[dict[str, Any]]) -> None:
        """Keep a conversation up to and with its answer."""
        text = json.dumps(turns)
        self._kept[_owner(key), response_id] = text
        self._n_characters += len(text)
        self.trim()

    def get(self, key: str, response_id: str) -> Turns | None:
        """The conversation, to whoever showed the key it was made with."""
        found = self._kept.get((_owner(key), response_id))
        return None if found is None else list(json.loads(found))

    def trim(self) -> None:
        while self._kept and (len(self._kept) > self.size or self._n_characters > MAX_CHARACTERS):
            _, gone = self._kept.popitem(last=False)
            self._n_characters -= len(gone)


def _owner(key: str) -> str:
    """Keys themselves are not kept."""
    return hashlib.sha256(key.encode()).hexdigest()
