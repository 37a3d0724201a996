"""The account of a deployment's keys: each one is carried over, or left behind with a reason.

Walks the file's model, so that a key added tomorrow cannot be dropped in silence.
"""

from __future__ import annotations

from collections.abc import Iterator

from parlay.deployment import Deployment, Section
from parlay.rendering.launch import KeyEntry

_BY_GATEWAY = "the gateway does that: put `engine: endpoints` in front"
_GATEWAY_KEYS = ("routes", "engine", "upstreams", "gateway.", "monitoring.")


def keys_of(deployment: Deployment) -> Iterator[tuple[str, bool]]:
    """Every key with dots, and whether the file names it."""
    for name in Deployment.model_fields:
        part = getattr(deployment, name)
        named = name in deployment.model_fields_set
        if not isinstance(part, Section):
            yield name, named
            continue
        for key in type(part).model_fields:
            yield f"{name}.{key}", named and key in part.model_fields_set


class KeyAccount:
    """Filled while an engine's command is made."""

    def __init__(self, deployment: Deployment, engine: str) -> None:
        self._engine = engine
        self._keys = dict(keys_of(deployment))
        self._told: dict[str, KeyEntry] = {}

    def carry(self, key: str, how: str) -> None:
        """The engine will do it, by this flag."""
        self._tell(key, True, how)

    def leave(self, key: str, why: str) -> None:
        """The engine will not."""
        self._tell(key, False, why)

    def given(self, key: str) -> bool:
        return self._keys[key]

    def _tell(self, key: str, carried: bool, how: str) -> None:
        assert key in self._keys and key not in self._told, key
        self._told[key] = KeyEntry(key, carried, how, self._keys[key])

    def entries(self) -> tuple[KeyEntry, ...]:
        """All keys in the file's order; one that nobody spoke of was not carried over."""
        return tuple(self._told.get(key) or self._silent(key) for key in self._keys)

    def _silent(self, key: str) -> KeyEntry:
        gateway = key.startswith(_GATEWAY_KEYS)
        why = _BY_GATEWAY if gateway else f"{self._engine} has nothing like it"
        return KeyEntry(key, False, why, self._keys[key])
