"""Arguments with a quote of their own (Gemma's notation) as Lark, by their schema.

Knows schemas and that notation. Names, types, enumerations, lists, nested objects and what is
required are held; patterns, lengths and bounds are not. What a schema leaves open may be any value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

_ANY = "any"
_SCALARS = {
    "number": r"/-?(0|[1-9][0-9]{0,15})(\.[0-9]{1,15})?([eE][-+]?[0-9]{1,3})?/",
    "integer": r"/-?(0|[1-9][0-9]{0,15})/",
    "boolean": '("true" | "false")',
    "null": '"null"',
}
_KEY = "/[A-Za-z_][A-Za-z0-9_]{0,63}/"


class KeepRule(Protocol):
    """Where rules are kept."""

    def __call__(self, prefix: str, body: str) -> str:
        """Keep one; its name."""


@dataclass(frozen=True, slots=True)
class QuotedGrammar:
    """Values of one form."""

    rule: KeepRule
    text: Callable[[str], str]  # a fixed text
    quoted: str  # any text between two of these:
    mark: str
    define: Callable[[str, str], None]  # a rule that may name itself
    exact: bool  # all that is required, in order; else what is known, in any order

    def members(self, schema: Mapping[str, Any]) -> str:
        """What stands between an object's braces."""
        properties = schema.get("properties")
        if not isinstance(properties, Mapping) or not properties:
            return self._free_members() if schema.get("additionalProperties") is not False else ""
        pairs = [(key, self._pair(key, value)) for key, value in properties.items()]
        if not self.exact:
            one = self.rule("member", " | ".join(pair for _, pair in pairs))
            return f'({one} ("," {one})*)?'
        wanted = schema.get("required")
        return self._in_order(pairs, wanted if isinstance(wanted, list) else [])

    def _in_order(self, pairs: Sequence[tuple[str, str]], required: Sequence[str]) -> str:
        """Commas stand between those that are there."""
        first, rest = '""', '""'
        for key, pair in reversed(pairs):
            if key in required:
                first, rest = f"{pair} {rest}", f'"," {pair} {rest}'
            else:
                first, rest = f"({pair} {rest} | {first})", f'("," {pair})? {rest}'
            first, rest = self.rule("first", first), self.rule("rest", rest)
        return first

    def _pair(self, key: str, schema: Any) -> str:
        return self.rule("pair", f"{self.text(key + ':')} {self.value(schema)}")

    def value(self, schema: Any) -> str:
        """A value that the schema allows."""
        if not isinstance(schema, Mapping):
            return self._any()
        listed = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(listed, list) and listed:
            return self.rule("value", " | ".join(map(self._fixed, listed)))
        for union in ("anyOf", "oneOf"):
            if isinstance(schema.get(union), list) and schema[union]:
                return self.rule("value", " | ".join(map(self.value, schema[union])))
        kinds = schema.get("type")
        each = kinds if isinstance(kinds, list) else [kinds]
        return self.rule("value", " | ".join(self._typed(kind, schema) for kind in each))

    def _typed(self, kind: object, schema: Mapping[str, Any]) -> str:
        if kind == "string":
            return self.quoted
        if kind == "array":
            return self._list_of(self.value(schema.get("items")))
        if kind == "object":
            return f'"{{" {self.members(schema)} "}}"'
        return _SCALARS.get(str(kind)) or self._any()

    def _list_of(self, item: str) -> str:
        return f'"[" ({item} ("," {item})*)? "]"'

    def _fixed(self, value: Any) -> str:
        """One value of an enumeration."""
        if isinstance(value, str):
            return f"{self.text(self.mark)} {self.text(value)} {self.text(self.mark)}"
        words = {True: "true", False: "false", None: "null"}
        if value is None or isinstance(value, bool):
            return self.text(words[value])
        return self.text(repr(value)) if isinstance(value, (int, float)) else self._any()

    def _free_members(self) -> str:
        one = f'{_KEY} ":" {self._any()}'
        return f'({one} ("," {one})*)?'

    def _any(self) -> str:
        scalars = " | ".join(_SCALARS[kind] for kind in ("number", "boolean", "null"))
        one = f'{_KEY} ":" {_ANY}'
        nested = f'"{{" ({one} ("," {one})*)? "}}" | {self._list_of(_ANY)}'
        self.define(_ANY, f"{self.quoted} | {scalars} | {nested}")
        return _ANY
