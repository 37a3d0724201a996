"""Grammars of tool calls, in Lark: what may follow once a call has begun, in each form.

Knows forms and schemas; which tokens that allows is the grammar engine's business.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parlay.ask import CallForm, ToolFunction
from parlay.chat.forms import PYTHON_TAG
from parlay.chat.schemas import argument_of, moved, takes_text
from parlay.engine.structured.grammar import compact

_ANY_OBJECT: dict[str, Any] = {"type": "object"}
_WHOLE = "/$defs/arguments"  # where the schema of all arguments stands in that of one


@dataclass(slots=True, kw_only=True)
class CallGrammar:
    """One form's grammars for some functions."""

    form: CallForm
    functions: Sequence[ToolFunction]
    control: Mapping[str, int]  # texts that are one token each
    exact: bool  # schemas hold to the letter, all that is required is there
    many: bool  # lists of calls may hold several
    _rules: dict[str, str] = field(default_factory=dict, init=False)

    def triggers(self) -> tuple[str, ...]:
        """Texts with which a call begins."""
        form = self.form
        return (form.open, '{"name": "') if form.bare else (form.open,)

    def after(self, trigger: str) -> str:
        """What must follow a trigger, to the call's end."""
        self._rules = {}
        form = self.form
        if trigger == '{"name": "':
            start = self._either(self._rest_of_bare)
        elif form.kind == "json":
            start = self._objects(self._text(form.close) if trigger == form.open else "")
        else:
            start = self._either(self._call)
        return self._lark(f"start: {start}")

    def forced(self) -> str:
        """A whole answer that is one call, or several where there may be."""
        self._rules = {}
        form = self.form
        if form.kind == "json":
            opened = "" if form.open == PYTHON_TAG else self._text(form.open)
            start = f"{opened} {self._objects(self._text(form.close) if opened else '')}"
            return self._lark(f"start: {start}")
        lead = form.begin if form.kind != "channels" else "<|channel|>commentary"
        lead += "\n" if form.begin and form.closing else ""
        start = f"{self._text(lead)} {self._text(form.open)} ({self._either(self._call)})"
        end = "" if form.closing or form.kind == "channels" else self._text(form.end)
        return self._lark(f"start: {start} {end}")

    # -- forms ------------------------------------------------------------------------

    def _objects(self, close: str) -> str:
        one = self._rule("object", self._json(self._object_schema()))
        if not self.form.listed:
            return f"SPACE {one} SPACE {close}"
        more = f'("," SPACE {one})*' if self.many else ""
        return f'SPACE "[" {one} {more} "]" {close}'

    def _object_schema(self) -> dict[str, Any]:
        functions = self.functions
        if len(functions) == 1:
            return self._call_schema(functions[0], "")
        calls = [self._call_schema(each, f"/anyOf/{i}") for i, each in enumerate(functions)]
        return {"anyOf": calls}

    def _call_schema(self, function: ToolFunction, place: str) -> dict[str, Any]:
        key = self.form.arguments
        arguments = moved(self._schema(function), f"{place}/properties/{key}")
        return {
            "type": "object",
            "properties": {"name": {"const": function.name}, key: arguments},
            "required": ["name", key],
            "additionalProperties": False,
        }

    def _rest_of_bare(self, function: ToolFunction) -> str:
        """From the name in an object that stands for itself."""
        head = json.dumps(f'{function.name}", "{self.form.arguments}": ')
        return f'{head} {self._json(self._schema(function))} "}}"'

    def _call(self, function: ToolFunction) -> str:
        form = self.form
        name = self._text(form.prefix + function.name) + (
            ' ":" /[0-9]{1,3}/' if form.counted else ""
        )
        if form.kind == "channels":
            kind = f'("<|channel|>commentary")? (" " | " json" | " {"<|constrain|>"}json")?'
            head = f"{name} {self._marks(kind)} {self._text(form.middle)}"
            return f"{head} {self._json(self._schema(function))}"
        close = self._text(form.closing or form.close)
        if form.kind == "named":
            schema = self._json(self._schema(function))
            return f"{name} {self._text(form.middle)} {schema} {close}"
        if form.kind == "quoted":
            members = self._quoted_values().members(self._schema(function))
            return f"{name} {self._text(form.middle)} {members} {close}"
        return f"{name} {self._text(form.middle)} {self._tagged(function)} {close}"

    def _quoted_values(self) -> QuotedGrammar:
        mark = self.form.quote
        quoted = self._rule("quoted", f"{self._text(mark)} {self._until(mark)}")
        return QuotedGrammar(self._rule, self._text, quoted, mark, self._define, exact=self.exact)

    def _tagged(self, function: ToolFunction) -> str:
        properties = function.parameters.get("properties")
        known = properties if isinstance(properties, Mapping) else {}
        wanted = function.parameters.get("required")
        required = wanted if isinstance(wanted, list) else []
        found = [(key, self._argument(function, key, argument_of(function, key))) for key in known]
        if not found:
            return ""
        if not self.exact:
            return f"({' | '.join(rule for _, rule in found)})*"
        return " ".join(rule if key in required else f"{rule}?" for key, rule in found)

    def _argument(self, function: ToolFunction, key: str, schema: Any) -> str:
        form = self.form
        kind = str(takes_text(function, key)).lower()
        named = f'{key}" string="{kind}' if form.typed else key
        head = f"{self._text(form.key_open)} {self._text(named)} {self._text(form.key_close)}"
        end = self._text(form.value_close) + ' "\\n"'
        plain = isinstance(schema, Mapping) and "enum" not in schema
        if takes_text(function, key) and plain:
            body = f'{self._until(form.value_close)} "\\n"'
        elif takes_text(function, key):
            body = f"({' | '.join(self._text(value) for value in schema['enum'])}) {end}"
        else:
            body = f"{self._json(self._alone(function, schema))} {end}"
        return self._rule("argument", f"{head} {body}")

    # -- Lark ---------------------------------------------------------------------------

    def _schema(self, function: ToolFunction) -> dict[str, Any]:
        return dict(function.parameters) or _ANY_OBJECT

    def _alone(self, function: ToolFunction, schema: Any) -> dict[str, Any]:
        """An argument's schema, with the whole one that it may refer to."""
        if not isinstance(schema, dict):
            return {}
        here = moved(schema, _WHOLE)
        whole = {"arguments": moved(self._schema(function), _WHOLE)}
        return schema if here == schema else {**here, "$defs": whole}

    def _either(self, make: Any) -> str:
        return " | ".join(self._rule("call", make(function)) for function in self.functions)

    def _json(self, schema: dict[str, Any]) -> str:
        return self._rule("json", f"%json {json.dumps(compact(schema))}")

    def _until(self, mark: str) -> str:
        """Any text up to a mark, the mark included; one that is a token ends it by itself."""
        words = [word for word in self.control if word in mark]
        any_text = "/(.|\\n)*/"
        if words:
            return f"{self._rule('text', any_text)} {self._text(mark)}"
        return self._rule("text", any_text, f"[suffix={json.dumps(mark)}]")

    def _text(self, mark: str) -> str:
        """A text; parts of it may be control tokens."""
        words = sorted((w for w in self.control if w in mark), key=len, reverse=True)
        if not words:
            return json.dumps(mark, ensure_ascii=False) if mark else ""
        parts = re.split("(" + "|".join(map(re.escape, words)) + ")", mark)
        return " ".join(
            f"<[{self.control[part]}]>" if part in self.control else json.dumps(part)
            for part in parts
            if part
        )

    def _marks(self, lark: str) -> str:
        """Lark in which control tokens are still written as texts."""
        return re.sub(r'"([^"]*)"', lambda found: self._text(found.group(1)), lark)

    def _rule(self, prefix: str, body: str, attributes: str = "") -> str:
        known = self._rules.get(f"{attributes}{body}")
        if known is None:
            known = f"{prefix}_{len(self._rules)}"
            self._rules[f"{attributes}{body}"] = known
            self._rules[f"={known}"] = f"{known}{attributes}: {body}"
        return known

    def _define(self, name: str, body: str) -> None:
        """A rule whose name is given, since it may stand in its own body."""
        self._rules[f"={name}"] = f"{name}: {body}"

    def _lark(self, start: str) -> str:
        rules = [rule for key, rule in self._rules.items() if key.startswith("=")]
        return "\n".join([start, *rules, "SPACE: /[ \\n]{0,2}/", ""])


# -- arguments with a quote of their own (Gemma's notation) ---------------------------------------
# Names, types, enumerations, lists, nested objects and what is required are held; patterns, lengths
# and bounds are not. What a schema leaves open may be any value.

_ANY = "any"
_SCALARS = {
    "number": r"/-?(0|[1-9][0-9]{0,15})(\.[0-9]{1,15})?([eE][-+]?[0-9]{1,3})?/",
    "integer": r"/-?(0|[1-9][0-9]{0,15})/",
    "boolean": '("true" | "false")',
    "null": '"null"',
}
_KEY = "/[A-Za-z_][A-Za-z0-9_]{0,63}/"


@dataclass(frozen=True, slots=True)
class QuotedGrammar:
    """Values of one form."""

    rule: Callable[[str, str], str]  # keeps one under a name that begins so; its name
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
