"""Grammars of tool calls, in Lark: what may follow once a call has begun, in each form.

Knows forms and schemas; which tokens that allows is the grammar engine's business.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parlay.engine.structured.grammar import compact
from parlay.server.api.quoted_grammar import QuotedGrammar
from parlay.server.api.schema_place import moved
from parlay.server.api.tool_formats import PYTHON_TAG, ToolFormat
from parlay.server.api.tools import ToolFunction

_ANY_OBJECT: dict[str, Any] = {"type": "object"}
_WHOLE = "/$defs/arguments"  # where the schema of all arguments stands in that of one


@dataclass(slots=True, kw_only=True)
class CallGrammar:
    """One form's grammars for some functions."""

    form: ToolFormat
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
        found = [(key, self._argument(function, key, function.argument(key))) for key in known]
        if not found:
            return ""
        if not self.exact:
            return f"({' | '.join(rule for _, rule in found)})*"
        return " ".join(rule if key in required else f"{rule}?" for key, rule in found)

    def _argument(self, function: ToolFunction, key: str, schema: Any) -> str:
        form = self.form
        kind = str(function.takes_text(key)).lower()
        named = f'{key}" string="{kind}' if form.typed else key
        head = f"{self._text(form.key_open)} {self._text(named)} {self._text(form.key_close)}"
        end = self._text(form.value_close) + ' "\\n"'
        plain = isinstance(schema, Mapping) and "enum" not in schema
        if function.takes_text(key) and plain:
            body = f'{self._until(form.value_close)} "\\n"'
        elif function.takes_text(key):
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
