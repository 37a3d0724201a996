"""References keep their meaning when a schema becomes part of another."""

from __future__ import annotations

from typing import Any

from parlay.chat.schemas import followed, moved


def test_references_move_with_their_schema_and_values_do_not() -> None:
    schema = {
        "$id": "https://example.org/a",
        "properties": {"a": {"$ref": "#/$defs/a"}, "$ref": {"$ref": "#"}, "$id": {"type": "null"}},
        "allOf": [{"$ref": "#/$defs/a"}, {"$ref": "https://example.org/b#/c"}],
        "enum": [{"$ref": "#/$defs/a"}],
    }
    assert moved(schema, "/properties/x") == {
        "properties": {
            "a": {"$ref": "#/properties/x/$defs/a"},
            "$ref": {"$ref": "#/properties/x"},
            "$id": {"type": "null"},
        },
        "allOf": [{"$ref": "#/properties/x/$defs/a"}, {"$ref": "https://example.org/b#/c"}],
        "enum": [{"$ref": "#/$defs/a"}],
    }


def test_references_are_followed_to_a_schema_and_round_in_circles_for_a_while_only() -> None:
    root: dict[str, Any] = {
        "$defs": {
            "a/b": {"$ref": "#/$defs/c"},
            "c": {"type": "string"},
            "me": {"$ref": "#/$defs/me"},
            "gone": {"$ref": "#/$defs/no/where"},
        }
    }
    assert followed({"$ref": "#/$defs/a~1b"}, root) == {"type": "string"}
    assert followed({"$ref": "#/$defs/me"}, root) == {"$ref": "#/$defs/me"}
    assert followed({"$ref": "#/$defs/gone"}, root) == {"$ref": "#/$defs/no/where"}
    assert followed(None, root) is None
