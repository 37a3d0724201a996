"""Reads tool calls out of text that arrives in pieces: content and calls come out apart.

Knows the forms, not the models. Nothing is taken for a call before it is whole and its name is one
that was offered; until then the text is held back, and comes out unchanged if it was none. Only a
call that its own closing mark or the answer's end cuts short is told as far as it came. How the
text is cut into pieces changes nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from parlay.ask import CallForm, ToolFunction
from parlay.chat.deltas import CallArguments, CallBegin, Delta, Text
from parlay.chat.forms import PYTHON_TAG
from parlay.chat.schemas import takes_text
from parlay.decoding.reasoning import held_back

MAX_NAME = 256  # characters between a mark and what must follow the name
_LONG = 1024  # held text is then looked at anew only when something may have ended
_OBJECT = re.compile(
    r'\s*\{\s*"name"\s*:\s*"([^"\\]*)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
_COUNT = re.compile(r":\d+$")
_JSON = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|["{}\[\]]', re.DOTALL)  # whole strings, and brackets

_QUOTE = re.compile(r'\\.|"', re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Call:
    """A call that was read, in so many characters."""

    n: int
    name: str
    arguments: str


_NONE: Literal[False] = False  # what was opened is no call
_Read = _Call | Literal[False] | None  # None: more must come before it can be told


class CallText:
    """One answer, read piece by piece."""

    def __init__(self, form: CallForm, functions: Sequence[ToolFunction]) -> None:
        self._form = form
        self._functions = {function.name: function for function in functions}
        self._text = ""  # not decided yet
        self._final = False
        self._fresh = True  # nothing was said yet: a bare call may still begin
        self._opened: int | None = None  # characters of `_text` that opened what may be a call
        self._close = ""  # the mark that ends it
        self._in_list = False
        self._ended = False  # a call has, and another may follow at once
        self._n_tried = 0  # characters after the opening in which nothing could be told
        self._in_string = False  # where they end
        self._escape = ""  # a backslash there
        self._n_calls = 0
        self._key_close = _loosely(form.key_close)
        self._value_close = _loosely(form.value_close)
        # Tags tell where a name ends, too: some models leave the line break out.
        ends = [re.escape(form.middle.rstrip("\n") or form.middle)]
        if form.kind == "tagged":
            ends += [f"(?={re.escape(mark)})" for mark in (form.key_open, form.close) if mark]
        self._name_end = re.compile("|".join(ends))
        openers = (form.begin, form.open, PYTHON_TAG if form.bare else "")
        self._openers = tuple(mark for mark in openers if mark)
        marks = (form.close, form.value_close, form.key_close, form.middle)
        self._last_letters = {mark.rstrip()[-1:] for mark in marks} - {""}

    def push(self, text: str) -> list[Delta]:
        """Take text; what may still become a call is held back."""
        self._text += text
        return self._run()

    def finish(self) -> list[Delta]:
        """The rest: a call that was cut short, or text after all."""
        self._final = True
        return self._run()

    def _run(self) -> list[Delta]:
        said: list[Delta] = []
        going = True
        while going:
            if self._ended:
                going = self._follow()
            elif self._opened is None:
                going = self._look(said)
            else:
                going = self._try(self._opened, said)
        return said

    def _say(self, n: int, said: list[Delta]) -> None:
        text, self._text = self._text[:n], self._text[n:]
        self._fresh = self._fresh and not text.strip()
        if text:
            said.append(Text(text))

    def _look(self, said: list[Delta]) -> bool:
        """Outside of calls: say what is certain to be none; whether one may have begun."""
        text = self._text
        start = len(text) - len(text.lstrip())
        if self._fresh and self._form.bare and text[start : start + 1] in ("{", "["):
            return self._open(start, "", said)
        found = [(text.find(mark), -len(mark), mark) for mark in self._openers if mark in text]
        if found:
            at, _, mark = min(found)
            # Of marks that begin alike the longest counts, once it can be told.
            longer = (other for other in self._openers if len(other) > len(mark))
            if not self._final and any(other.startswith(text[at:]) for other in longer):
                return False
            return self._open(at, mark, said)
        # A mark's beginning is held, and space before one: that would go with it.
        held = max((held_back(text, mark) for mark in self._openers), default=0)
        certain = text if self._final else text[: len(text) - held].rstrip()
        self._say(len(certain), said)
        return False

    def _open(self, at: int, mark: str, said: list[Delta]) -> bool:
        """Everything before is said; the space before a mark stays with the mark."""
        before = len(self._text[:at].rstrip())
        self._say(before, said)
        self._opened, self._n_tried = at - before + len(mark), 0
        self._in_string, self._escape = False, ""
        self._close = self._form.close if mark in (self._form.open, self._form.begin) else ""
        self._in_list = False
        return True

    def _try(self, opened: int, said: list[Delta]) -> bool:
        """What was opened: a call, text after all, or not to be told yet."""
        rest = self._text[opened:]
        new, self._n_tried = rest[self._n_tried :], len(rest)
        if not self._may_end(new) and len(rest) > _LONG and not self._final:
            return False
        mark, after = self._form.open, rest.lstrip()
        if self._form.begin and self._text[:opened].lstrip() == self._form.begin:
            if after.startswith(mark):
                self._opened, self._n_tried = len(self._text) - len(after) + len(mark), 0
                return True
            read: _Read = None if mark.startswith(after) else _NONE  # its own mark must follow
        else:
            read = self._read(rest)
        if read is None and not self._final:
            return False
        self._opened, self._fresh = None, False
        if not read:
            self._say(max(1, opened), said)
            return True
        said.append(CallBegin.of(self._n_calls, read.name))
        if read.arguments:
            said.append(CallArguments(self._n_calls, read.arguments))
        self._n_calls += 1
        self._text, self._ended = rest[read.n :], True
        return True

    def _may_end(self, new: str) -> bool:
        """Whether a call may end in new text: most of a long one is one long string."""
        if self._form.kind not in ("json", "named"):
            return not self._last_letters.isdisjoint(new)
        text, was = self._escape + new, self._in_string
        n_quotes = sum(found.group() == '"' for found in _QUOTE.finditer(text))
        self._in_string = was ^ bool(n_quotes % 2)
        self._escape = "\\" if (len(text) - len(text.rstrip("\\"))) % 2 else ""
        return n_quotes > 0 or not was

    def _follow(self) -> bool:
        """Marks that end a call, or lead to the next one, say nothing."""
        text, form = self._text.lstrip(), self._form
        lines = [line for line in self._close.split("\n") if line]
        endings = [mark for mark in (*lines, "]" if self._in_list else "", form.end) if mark]
        for mark in endings:
            if text.startswith(mark):
                self._text = text[len(mark) :]
                return True
        separator = "," if self._in_list else ";" if form.bare and not self._close else None
        if text[:1] == separator:
            self._text, self._opened, self._n_tried = text[1:], 0, 0
            self._ended, self._in_string, self._escape = False, False, ""
            return True
        if not self._final and any(mark.startswith(text) for mark in ("", *endings)):
            return False
        self._text, self._ended = text, False
        return True

    # -- a call in each form ----------------------------------------------------------------

    def _read(self, rest: str) -> _Read:
        if self._form.kind == "json":
            return self._object(rest)
        return self._quoted(rest) if self._form.kind == "quoted" else self._named(rest)

    def _object(self, rest: str) -> _Read:
        """An object, or the first of a list of them; mostly the name comes first."""
        start = _skip(rest, 0)
        if rest[start : start + 1] == "[":
            self._in_list = True
            start = _skip(rest, start + 1)
        if start == len(rest):
            return None
        head = _OBJECT.match(rest, start)
        if rest[start] != "{" or (head and head[1] not in self._functions):
            return _NONE
        end, cut = _span(rest, start), self._cut(rest, start)
        if end is None or (cut is not None and cut < end):
            if cut is None or head is None or head.end() > cut:
                return None if cut is None else _NONE
            whole = _span(rest, head.end())
            stop = cut if whole is None else min(whole, cut)
            return _Call(cut, head[1], rest[head.end() : stop])
        if head:
            return _Call(end, head[1], rest[head.end() : _span(rest, head.end())])
        return self._parsed(rest[start:end], end)

    def _parsed(self, text: str, end: int) -> _Read:
        """Keys in another order, or a text of JSON as arguments."""
        try:
            value: Any = json.loads(text)
        except ValueError:
            return _NONE
        if not isinstance(value, dict) or value.get("name") not in self._functions:
            return _NONE
        arguments = value.get("arguments", value.get("parameters", {}))
        given = arguments if isinstance(arguments, str) else _dumps(arguments)
        return _Call(end, value["name"], given)

    def _named(self, rest: str) -> _Read:
        """A name, then its arguments as JSON or each between marks."""
        found = self._name_end.search(rest)
        if found is None:
            return None if len(rest) < MAX_NAME else _NONE
        name = rest[: found.start()].partition("[CALL_ID]")[0].strip()
        name = name.removeprefix(self._form.prefix)
        name = _COUNT.sub("", name) if self._form.counted else name
        if name not in self._functions:
            return _NONE
        if self._form.kind == "tagged":
            return self._tagged(rest, found.end(), name)
        start = _skip(rest, found.end())
        if rest[start : start + 1] != "{":
            return None if start == len(rest) else _NONE
        end, cut = _span(rest, start), self._cut(rest, start)
        ends = [one for one in (end, cut) if one is not None]
        return _Call(min(ends), name, rest[start : min(ends)]) if ends else None

    def _cut(self, rest: str, start: int) -> int | None:
        """Where a call is cut short: at its closing mark outside of any string, or at the end."""
        at = rest.find(self._close, start) if self._close else -1
        for found in _JSON.finditer(rest, start):
            if at < found.start():
                break
            if found.group() == '"':  # a string that goes on: the mark may stand in it
                at = -1
            elif at < found.end():
                at = rest.find(self._close, found.end())
        return at if at >= 0 else len(rest) if self._final else None

    def _tagged(self, rest: str, at: int, name: str) -> _Read:
        form, pairs = self._form, list[str]()
        first = form.close.partition("\n")[0]
        while True:
            at = _skip(rest, at)
            text = rest[at:]
            if text.startswith(form.key_open):
                key_start = at + len(form.key_open)
                key_end = self._key_close.search(rest, key_start)
                value_end = self._value_close.search(rest, key_end.end()) if key_end else None
                if key_end is None or value_end is None:
                    shown = "{" + ", ".join(pairs) if pairs else ""
                    return _Call(len(rest), name, shown) if self._final else None
                key, value = rest[key_start : key_end.start()], rest[key_end.end() :]
                value = value[: value_end.start() - key_end.end()]
                pairs.append(self._pair(self._functions[name], key, value))
                at = value_end.end()
                continue
            hope = form.key_open.startswith(text) or first.startswith(text)
            if hope and text != first and not self._final:
                return None
            return _Call(at, name, "{" + ", ".join(pairs) + "}")

    def _pair(self, function: ToolFunction, key: str, value: str) -> str:
        key, _, kind = key.partition('" string="')
        if not (kind == "true" if kind else takes_text(function, key)):
            try:
                return f"{_dumps(key)}: {_dumps(json.loads(value))}"
            except ValueError:  # a text, whatever the schema says
                pass
        return f"{_dumps(key)}: {_dumps(value)}"

    def _quoted(self, rest: str) -> _Read:
        """A name, then arguments with a quote of their own."""
        name, brace, body = rest.partition(self._form.middle)
        if not brace or name.strip() not in self._functions:
            return None if not brace and len(rest) < MAX_NAME else _NONE
        body, closed, _ = body.partition(self._close)
        if not closed and not self._final:
            return None
        arguments = _unquoted("{" + body + "}", self._form.quote)
        n = len(name) + len(brace) + len(body) + len(closed)
        return _NONE if arguments is None else _Call(n, name.strip(), arguments)


def _skip(text: str, at: int) -> int:
    """Past white space."""
    return len(text) - len(text[at:].lstrip())


def _span(text: str, start: int) -> int | None:
    """Where a value of JSON ends that begins with a bracket, if it does."""
    depth = 0
    for found in _JSON.finditer(text, start):
        mark = found.group()
        if mark == '"':  # a string that goes on
            return None
        depth += (mark in "{[") - (mark in "}]")
        if depth <= 0 and mark in "}]":
            return found.end()
    return None


def _loosely(mark: str) -> re.Pattern[str]:
    """A mark in which a line break may be missing; within it, any space will do."""
    lines = [re.escape(line) for line in mark.strip("\n").split("\n")]
    before, after = ("\n?" if mark.startswith("\n") else ""), ("\n?" if mark.endswith("\n") else "")
    return re.compile(before + r"\s*".join(lines) + after)


def _unquoted(text: str, quote: str) -> str | None:
    """The same as JSON: texts stand between quotes of their own, keys without any."""
    parts = text.split(quote)
    made = [
        _dumps(part) if i % 2 else re.sub(r"([{,]\s*)([\w.-]+)\s*:", r'\1"\2":', part)
        for i, part in enumerate(parts)
    ]
    try:
        return _dumps(json.loads("".join(made)))
    except ValueError:
        return None


def _dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
