"""Reads tool calls out of text that arrives in pieces: content and calls come out apart.

Knows the forms, not the models. Nothing is taken for a call before its name is one that was
offered; until then the text is held back, and comes out unchanged if it was none. How the text is
cut into pieces changes nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

from parlay.ask import CallForm, ToolFunction
from parlay.chat.deltas import CallArguments, CallBegin, Delta, Text
from parlay.chat.forms import PYTHON_TAG
from parlay.chat.schemas import takes_text
from parlay.decoding.reasoning import held_back

MAX_NAME = 256  # characters between a mark and what must follow the name
_OBJECT = re.compile(
    r'\s*\{\s*"name"\s*:\s*"([^"\\]*)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
_COUNT = re.compile(r":\d+$")
_SPACE = re.compile(r"\s*")
_NEXT = re.compile(r'["{}\[\]]')
_IN_STRING = re.compile(r'["\\]')

Step = Callable[[], bool]  # goes on as far as the text lets it; False: more must come first


class CallText:
    """One answer, read piece by piece."""

    def __init__(self, form: CallForm, functions: Sequence[ToolFunction]) -> None:
        self._form = form
        self._functions = {function.name: function for function in functions}
        self._text = ""  # not decided yet
        self._final = False
        self._fresh = True  # nothing was said yet: a bare call may still begin
        self._step: Step = self._outside
        self._opened = 0  # characters of `_text` that opened what may be a call
        self._close = ""
        self._span = JsonSpan()
        self._function = ToolFunction("")
        self._n_calls = 0
        self._n_arguments = 0
        self._in_list = False
        self._said: list[Delta] = []
        self._key_close = _loosely(form.key_close)
        # Tags tell where a name ends, too: some models leave the line break out.
        ends = [form.middle.rstrip("\n") or form.middle]
        tags = [f"(?={re.escape(mark)})" for mark in (form.key_open, form.close) if mark]
        tags = tags if form.kind == "tagged" else []
        self._name_end = re.compile("|".join([*map(re.escape, ends), *tags]))
        self._value_close = _loosely(form.value_close)
        self._openers = tuple(
            mark for mark in (form.begin, form.open, PYTHON_TAG if form.bare else "") if mark
        )

    def push(self, text: str) -> list[Delta]:
        """Take text; what may still become a call is held back."""
        self._text += text
        return self._run()

    def finish(self) -> list[Delta]:
        """The rest: a call that was cut short, or text after all."""
        self._final = True
        return self._run()

    def _run(self) -> list[Delta]:
        while self._step():
            pass
        said, self._said = self._said, []
        return said

    def _go(self, step: Step) -> bool:
        self._step = step
        return True

    def _cut(self, n: int) -> str:
        taken, self._text = self._text[:n], self._text[n:]
        return taken

    def _say(self, n: int) -> None:
        said = self._cut(n)
        self._fresh = self._fresh and not said.strip()
        if said:
            self._said.append(Text(said))

    # -- outside of calls -----------------------------------------------------------

    def _outside(self) -> bool:
        text = self._text
        if not text:
            return False
        if self._fresh and self._form.bare and text.lstrip()[:1] in ("{", "["):
            return self._open_at(len(text) - len(text.lstrip()), "")
        found = [(text.find(mark), -len(mark), mark) for mark in self._openers if mark in text]
        if found:
            at, _, mark = min(found)
            if not self._longer_may_come(at, mark):
                return self._open_at(at, mark)
            return False
        self._say(self._n_certain())
        if self._final:
            self._say(len(self._text))
        return False

    def _longer_may_come(self, at: int, mark: str) -> bool:
        """Of marks that begin alike the longest counts, once it can be told."""
        rest = self._text[at:]
        longer = (other for other in self._openers if len(other) > len(mark))
        return not self._final and any(other.startswith(rest) for other in longer)

    def _n_certain(self) -> int:
        """What is no mark's beginning and no space before one: that would go with it."""
        text = self._text
        held = max((held_back(text, mark) for mark in self._openers), default=0)
        return len(text[: len(text) - held].rstrip())

    def _open_at(self, at: int, mark: str) -> bool:
        """Everything before is said; the space before a mark stays with the mark."""
        before = len(self._text[:at].rstrip())
        if before:
            self._say(before)
        self._opened = at - before + len(mark)
        self._close = self._form.close if mark in (self._form.open, self._form.begin) else ""
        self._in_list = False
        return self._go(self._begun if mark and mark == self._form.begin else self._head)

    def _begun(self) -> bool:
        """A mark that stands before the first call: the call's own must follow."""
        rest = self._text[self._opened :]
        n_space = len(rest) - len(rest.lstrip())
        if rest.lstrip().startswith(self._form.open):
            self._opened += n_space + len(self._form.open)
            return self._go(self._head)
        return self._unless_more(self._form.open.startswith(rest.lstrip()))

    def _unless_more(self, hope: bool) -> bool:
        """Wait where there is hope and more may come; else it was text after all."""
        if hope and not self._final:
            return False
        self._say(max(1, self._opened))
        self._fresh = False
        return self._go(self._outside)

    # -- a call's head ----------------------------------------------------------------

    def _head(self) -> bool:
        if self._form.kind == "json":
            return self._object()
        if self._form.kind == "quoted":
            return self._quoted()
        return self._named()

    def _object(self) -> bool:
        """An object, or a list of them; mostly the name comes first, and arguments can flow."""
        at = self._opened + len(self._leading())
        found = _OBJECT.match(self._text, at)
        if found is None:
            return self._whole_object()
        if found.group(1) not in self._functions:
            return self._unless_more(False)
        self._cut(found.end())
        self._begin(found.group(1))
        self._span = JsonSpan()
        return self._go(self._json_arguments)

    def _leading(self) -> str:
        """The bracket of a list, which some models write and some do not."""
        rest = self._text[self._opened :]
        self._in_list = self._in_list or rest.lstrip()[:1] == "["
        bracket = rest.lstrip()[:1] == "["
        return rest[: len(rest) - len(rest.lstrip()) + 1] if bracket else ""

    def _whole_object(self) -> bool:
        """Keys in another order, or a text of JSON as arguments: read once it is complete."""
        rest = self._text[self._opened :]
        closed = self._close and self._close in rest
        if not closed and not self._final:
            return self._may_be_object(rest)
        body = rest.partition(self._close)[0] if closed else rest
        parts = _parsed(body, self._functions)
        if not parts:
            return self._unless_more(False)
        self._cut(self._opened + len(body))
        for name, arguments in parts:
            self._begin(name, arguments)
        return self._go(self._after)

    def _may_be_object(self, rest: str) -> bool:
        start = rest.lstrip()
        return False if not start or start[0] in "{[" else self._unless_more(False)

    def _named(self) -> bool:
        rest = self._text[self._opened :]
        found = self._name_end.search(rest)
        if found is None:
            return self._unless_more(len(rest) < MAX_NAME)
        name = self._clean(rest[: found.start()])
        if name not in self._functions:
            return self._unless_more(False)
        start = rest[found.end() :].lstrip()
        if self._form.kind == "named" and start[:1] != "{":
            return self._unless_more(not start)
        self._cut(self._opened + found.end())
        self._begin(name)
        self._span = JsonSpan()
        return self._go(self._tagged if self._form.kind == "tagged" else self._json_arguments)

    def _clean(self, name: str) -> str:
        name = name.partition("[CALL_ID]")[0].strip().removeprefix(self._form.prefix)
        return _COUNT.sub("", name) if self._form.counted else name

    def _begin(self, name: str, arguments: str = "") -> None:
        self._function = self._functions[name]
        self._said.append(CallBegin.of(self._n_calls, name))
        self._n_calls += 1
        self._flow(arguments)
        self._n_arguments = 0
        self._opened = 0
        self._fresh = False

    def _flow(self, arguments: str) -> None:
        if arguments:
            self._said.append(CallArguments(self._n_calls - 1, arguments))

    # -- arguments ----------------------------------------------------------------------

    def _json_arguments(self) -> bool:
        """Passed on as they are, up to their last bracket or the mark that ends the call."""
        text = self._text if self._n_arguments else self._text.lstrip()
        self._text = text
        at = text.find(self._close) if self._close else -1
        held = 0 if self._final or not self._close else held_back(text, self._close)
        n = self._span.push(text[: at if at >= 0 else len(text) - held])
        inside = at >= 0 and not self._span.over and not self._span.between
        if inside:  # the mark stands in a text: it ends nothing
            n += self._span.push(self._close)
        self._n_arguments += n
        self._flow(self._cut(n))
        if self._span.over and self._form.kind == "json":
            self._span = JsonSpan(depth=1)
            return self._go(self._rest_of_object)
        if self._span.over or (at >= 0 and not inside):
            return self._go(self._after)
        return inside

    def _rest_of_object(self) -> bool:
        """What an object says after its arguments, such as an id, is of no use."""
        at = self._text.find(self._close) if self._close else -1
        n = self._span.push(self._text)
        if self._span.over and (at < 0 or n <= at):
            self._cut(n)
            return self._go(self._after)
        if at >= 0:
            self._cut(at)
            return self._go(self._after)
        self._span = JsonSpan(depth=1)  # looked at again, from its start, when more has come
        if self._final:
            self._cut(len(self._text))
        return False

    def _tagged(self) -> bool:
        """Arguments between marks: told one by one, each when it is complete."""
        text, first = self._text.lstrip(), self._form.close.partition("\n")[0]
        if text.startswith(self._form.key_open):
            return self._argument(text)
        hope = self._form.key_open.startswith(text) or first.startswith(text)
        if hope and text != first and not self._final:
            return False
        self._flow("}" if self._n_arguments else "{}")
        self._text = text
        return self._go(self._after)

    def _argument(self, text: str) -> bool:
        start = len(self._form.key_open)
        key_end = self._key_close.search(text, start)
        value_end = self._value_close.search(text, key_end.end()) if key_end else None
        if key_end is None or value_end is None:
            self._text = "" if self._final else text
            return False
        pair = self._pair(text[start : key_end.start()], text[key_end.end() : value_end.start()])
        self._flow(("{" if self._n_arguments == 0 else ", ") + pair)
        self._n_arguments += 1
        self._text = text[value_end.end() :]
        return True

    def _pair(self, key: str, value: str) -> str:
        key, _, kind = key.partition('" string="')
        text = kind == "true" if kind else takes_text(self._function, key)
        if not text:
            try:
                return f"{_dumps(key)}: {_dumps(json.loads(value))}"
            except ValueError:  # a text, whatever the schema says
                pass
        return f"{_dumps(key)}: {_dumps(value)}"

    def _quoted(self) -> bool:
        """Arguments with a quote of their own: told whole."""
        rest = self._text[self._opened :]
        name, brace, body = rest.partition(self._form.middle)
        if not brace or name.strip() not in self._functions:
            return self._unless_more(not brace and len(rest) < MAX_NAME)
        body, closed, _ = body.partition(self._close)
        if not closed and not self._final:
            return False
        arguments = _unquoted("{" + body + "}", self._form.quote)
        if arguments is None:
            return self._unless_more(False)
        self._cut(self._opened + len(name) + 1 + len(body) + len(closed))
        self._begin(name.strip(), arguments)
        return self._go(self._after)

    # -- after a call -----------------------------------------------------------------------

    def _after(self) -> bool:
        """Marks that end a call, or lead to the next one, say nothing."""
        form = self._form
        text = self._text.lstrip()
        for mark in (*self._endings(), form.end):
            if mark and text.startswith(mark):
                self._text = text[len(mark) :]
                return True
        if text[:1] == ("," if self._in_list else ";" if form.bare and not self._close else None):
            self._text, self._opened = text[1:], 0
            return self._go(self._next)
        waits = not text or any(m.startswith(text) for m in (*self._endings(), form.end) if m)
        if waits and not self._final:
            return False
        self._text = text
        return self._go(self._outside)

    def _endings(self) -> tuple[str, ...]:
        lines = tuple(line for line in self._close.split("\n") if line)
        return (*lines, "]") if self._in_list else lines

    def _next(self) -> bool:
        """One more of the list."""
        return self._object()


def _loosely(mark: str) -> re.Pattern[str]:
    """A mark in which a line break may be missing; within it, any space will do."""
    lines = [re.escape(line) for line in mark.strip("\n").split("\n")]
    before, after = ("\n?" if mark.startswith("\n") else ""), ("\n?" if mark.endswith("\n") else "")
    return re.compile(before + r"\s*".join(lines) + after)


def _parsed(text: str, known: dict[str, ToolFunction]) -> list[tuple[str, str]]:
    """Calls in a text of JSON, all of them or none; `;` may stand between objects."""
    decoder, found, at = json.JSONDecoder(), list[tuple[str, str]](), 0
    while at < len(text):
        at = _space(text, at)
        try:
            value, at = decoder.raw_decode(text, at)
        except ValueError:
            return []
        for one in value if isinstance(value, list) else [value]:
            if not isinstance(one, dict) or one.get("name") not in known:
                return []
            arguments = one.get("arguments", one.get("parameters", {}))
            found.append(
                (one["name"], arguments if isinstance(arguments, str) else _dumps(arguments))
            )
        at = _space(text, at)
        if at < len(text) and text[at] != ";":
            return []
        at += 1
    return found


def _space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()


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


class JsonSpan:
    """One value that begins with a bracket; `depth` brackets may be open already."""

    def __init__(self, depth: int = 0) -> None:
        self._depth = depth
        self._in_string = False
        self._escaped = False
        self.over = False

    @property
    def between(self) -> bool:
        """Whether the text so far ends outside of any string."""
        return not self._in_string

    def push(self, text: str) -> int:
        """Take text; how much of it belongs to the value."""
        at = 0
        while at < len(text) and not self.over:
            at = self._skip_string(text, at) if self._in_string else self._skip(text, at)
        return at

    def _skip_string(self, text: str, at: int) -> int:
        if self._escaped:
            self._escaped = False
            return at + 1
        found = _IN_STRING.search(text, at)
        if found is None:
            return len(text)
        self._escaped = found.group() == "\\"
        self._in_string = self._escaped
        return found.end()

    def _skip(self, text: str, at: int) -> int:
        found = _NEXT.search(text, at)
        if found is None:
            return len(text)
        mark = found.group()
        if mark == '"':
            self._in_string = True
        else:
            self._depth += 1 if mark in "{[" else -1
            self.over = self._depth <= 0
        return found.end()
