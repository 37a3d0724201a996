"""JSON schemas of functions: moved into another one, and what an argument of one is.

Knows where schemas hold references; knows no grammars and no forms of calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parlay.ask import ToolFunction

_DATA = frozenset({"const", "enum", "default", "examples"})  # values, not schemas
_MOST_STEPS = 32  # from one reference to the next


def moved(schema: Any, place: str) -> Any:
    """The schema as it must be written at `place`, a JSON pointer; `$id` would be a root anew."""
    if isinstance(schema, list):
        return [moved(each, place) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: value
        if key in _DATA
        else _reference(value, place)
        if key == "$ref"
        else moved(value, place)
        for key, value in schema.items()
        if key != "$id" or not isinstance(value, str)
    }


def _reference(value: Any, place: str) -> Any:
    """`$ref` may be the name of a property too, and then holds a schema."""
    if not isinstance(value, str):
        return moved(value, place)
    local = value == "#" or value.startswith("#/")
    return f"#{place}{value[1:]}" if local else value


def followed(schema: Any, root: Mapping[str, Any]) -> Any:
    """The schema behind references to parts of `root`; one that leads nowhere stays."""
    for _ in range(_MOST_STEPS):
        pointer = schema.get("$ref") if isinstance(schema, Mapping) else None
        found = _part(root, pointer) if isinstance(pointer, str) else None
        if found is None:
            return schema
        schema = found
    return schema


def _part(root: Any, pointer: str) -> Any:
    if not pointer.startswith("#/"):
        return root if pointer == "#" else None
    for name in pointer[2:].split("/"):
        key = name.replace("~1", "/").replace("~0", "~")
        root = root.get(key) if isinstance(root, Mapping) else None
    return root


def argument_of(function: ToolFunction, key: str) -> Any:
    """An argument's schema, behind a reference if it has one; None where there is none."""
    known = function.parameters.get("properties")
    found = known.get(key) if isinstance(known, Mapping) else None
    return followed(found, function.parameters)


def takes_text(function: ToolFunction, key: str) -> bool:
    """Whether an argument is a text, and not JSON."""
    kind = argument_of(function, key)
    if not isinstance(kind, Mapping):
        return False
    return kind.get("type") == "string" or all(isinstance(v, str) for v in kind.get("enum", [0]))
