"""Responses that may be gone on from: bounded, and each client's own.

Knows conversations as chat's messages; knows neither HTTP nor models. Nothing is kept on disk.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_CHARACTERS = 64_000_000  # over all that is kept

Turns = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class _Stored:
    """As text: what a client holds of it must not change what is kept."""

    turns: str
    response: str

    def __len__(self) -> int:
        return len(self.turns) + len(self.response)


class StoredResponses:
    """The latest responses; the oldest go first."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._kept: OrderedDict[tuple[str, str], _Stored] = OrderedDict()
        self._n_characters = 0

    def put(self, key: str, turns: Sequence[dict[str, Any]], response: Mapping[str, Any]) -> None:
        """Keep a response, and the conversation up to and with it."""
        stored = _Stored(json.dumps(turns), json.dumps(response))
        self._kept[_owner(key), response["id"]] = stored
        self._n_characters += len(stored)
        self.trim()

    def turns(self, key: str, response_id: str) -> Turns | None:
        """The conversation, to whoever showed the key it was made with."""
        found = self._kept.get((_owner(key), response_id))
        return None if found is None else list(json.loads(found.turns))

    def response(self, key: str, response_id: str) -> dict[str, Any] | None:
        """The response as it was answered, to the same."""
        found = self._kept.get((_owner(key), response_id))
        return None if found is None else dict(json.loads(found.response))

    def drop(self, key: str, response_id: str) -> bool:
        """Forget one; whether it was there."""
        found = self._kept.pop((_owner(key), response_id), None)
        self._n_characters -= 0 if found is None else len(found)
        return found is not None

    def trim(self) -> None:
        while self._kept and (len(self._kept) > self.size or self._n_characters > MAX_CHARACTERS):
            _, gone = self._kept.popitem(last=False)
            self._n_characters -= len(gone)


def _owner(key: str) -> str:
    """Keys themselves are not kept."""
    return hashlib.sha256(key.encode()).hexdigest()
