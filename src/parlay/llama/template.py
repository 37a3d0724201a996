"""Renders chat templates: a conversation becomes the text that a model was trained to read.

Does not know the model or its tokens. Nor does it trust the template, which comes out of a
downloaded file: it runs in jinja2's sandbox, and every render has a fixed amount of work. Bounded:
- loop turns and macro calls, `range`, and what comparisons, filters, tests and methods read;
- the length of any text, list or number that an operator, a filter or a method makes;
- the text written in all, the length of the template itself, and recursion (Python's own bound).
"""

from __future__ import annotations

import functools
import json
import re
import threading
from collections.abc import (
    Callable,
    ItemsView,
    Iterable,
    KeysView,
    Mapping,
    Sequence,
    Sized,
    ValuesView,
)
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, Undefined, nodes, pass_context
from jinja2.ext import Extension
from jinja2.filters import do_indent, make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from parlay.errors import BadRequest

MAX_SOURCE = 1 << 20  # characters; long real templates have 30 thousand
MAX_LENGTH = 1 << 24  # of one text or list, in characters or items
MAX_BITS = 4096  # of one number
# Units of work in one render, each about 0.1 us: at worst some ten seconds and 0.7 GiB.
MAX_WORK = 100_000_000
TURN = 300  # of a loop, or a macro's call
STEP = 40  # from item to item of a list
ITEM = 8  # met while a value is read
# Characters for one unit. Reading is fast; what is made may stay; what is written does.
READ, MADE, WRITTEN = 64, 4, 1


def _names(names: str) -> frozenset[str]:
    return frozenset(names.split())


# Methods that make at most as much as they read; `join` and `replace` are priced before.
_METHODS: tuple[tuple[type, frozenset[str]], ...] = (
    (
        str,
        _names(
            "capitalize casefold count endswith find index isalnum isalpha isascii isdecimal"
            " isdigit islower isnumeric isspace istitle isupper join lower lstrip partition"
            " removeprefix removesuffix replace rfind rindex rpartition rsplit rstrip split"
            " splitlines startswith strip swapcase title upper"
        ),
    ),
    (Mapping, _names("copy get items keys values")),
    (list, _names("copy count index")),
    (tuple, _names("count index")),
    (int, _names("")),
    (float, _names("is_integer")),
)
# jinja2's filters that take one look, that go through a list, and that read all there is.
_GLANCING = _names("count d default first last length safe")
_STEPPING = _names("items list map reject rejectattr reverse select selectattr")
_READING = _names(
    "abs capitalize dictsort float groupby int lower max min round sort title trim truncate"
    " unique upper wordcount"
)
_CONTAINERS = (list, tuple, KeysView, ValuesView, ItemsView)
_TEXTS = (str, int, float, list, tuple, dict, range, type(None), Undefined)
_WIDE_FORMAT = re.compile(r"%(\([^)]*\))?[^%a-zA-Z]*(\d{4}|\*)")
_PLAIN_FIELD = re.compile(r"\{\{|\}\}|\{\w*\}")
_ODD_DATE_FORMAT = re.compile(r"%(?!-?[a-zA-Z%])")


class ChatTemplate:
    """A compiled template. Any thread may render; they take turns."""

    def __init__(self, source: str, bos: str, eos: str) -> None:
        if len(source) > MAX_SOURCE:
            raise BadRequest(
                f"The model's chat template has {len(source)} characters, over {MAX_SOURCE}:"
                " use another file of this model"
            )
        self._tokens = {"bos_token": bos, "eos_token": eos}
        self._source = source
        self._lock = threading.Lock()
        self._env = _Environment()
        try:
            self._template = self._env.from_string(_priced(self._env.parse(source), self._env))
        except Exception as error:  # the compiler lets errors of any kind through
            raise BadRequest(_line("The model's chat template cannot be used", error)) from error

    def mentions(self, text: str) -> bool:
        """Whether a text stands in the template itself."""
        return text in self._source

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        """The prompt for a conversation. Further keywords reach the template as they are."""
        variables = {**self._tokens, "documents": None, **kwargs, "messages": messages}
        variables |= {"tools": tools, "add_generation_prompt": add_generation_prompt}
        with self._lock:
            self._env.work_left = MAX_WORK
            try:
                return self._template.render(variables)
            except Exception as error:  # the sandbox lets errors of any kind through
                raise BadRequest(_line("The chat template refuses this request", error)) from error


def _line(what: str, error: Exception) -> str:
    kind = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
    reason = " ".join(f"{kind}{error}".split())
    return f"{what}: {reason[:300]}"


# -- prices -------------------------------------------------------------------------------------


class _Overrun(TemplateError):
    """The template asked for more than a render may have."""


class _Metered(ImmutableSandboxedEnvironment):
    """jinja2's sandbox with a meter that runs."""

    work_left = MAX_WORK

    def charge(self, units: int) -> None:
        self.work_left -= units
        if self.work_left < 0:
            raise _Overrun("its template takes too much work; does a loop never end?")

    def turn(self, n_written: int) -> None:
        """A loop's or a macro's body begins, with so many characters of fixed text."""
        self.charge(TURN + n_written)

    def glance(self, value: Any) -> None:
        self.charge(ITEM)

    def step(self, value: Any) -> Any:
        """Price going through a value once, without a look into its items."""
        if isinstance(value, str):
            self.charge(len(value) // READ)
        elif isinstance(value, Sized):
            self.charge(len(value) * STEP)
        return value

    def read(self, value: Any) -> Any:
        """Price a value in its full extent."""
        self.walk(value, READ)
        return value

    def step_and_read(self, value: Any) -> None:
        self.read(self.step(value))

    @pass_context
    def written(self, context: Context, value: Any) -> Any:
        """Price a value that goes into the output. (Asking for the context stops jinja2 from
        doing this once, at compile time, for values that look constant.)"""
        self.check_text(value)
        self.walk(value, WRITTEN)
        return value

    def made(self, value: Any) -> Any:
        """Price a new value. What can get large all at once is checked before, by `make`."""
        if isinstance(value, str):
            self.make(len(value))
        elif isinstance(value, Sized):
            self.charge(len(value) * ITEM)
        return value

    def make(self, length: int) -> None:
        if length > MAX_LENGTH:
            raise _Overrun(f"its template makes a text or list of {length}, over {MAX_LENGTH}")
        self.charge(length // MADE)

    def walk(self, value: Any, chars_per_unit: int, margin: int = 0, depth: int = 0) -> None:
        """A part that is shared counts each time it is met, as it would when written out."""
        n_chars = len(value) if isinstance(value, str) else 0
        self.charge(ITEM + n_chars // chars_per_unit + margin * depth)
        if isinstance(value, range):
            self.step(value)
        if isinstance(value, Mapping):
            value = value.items()
        if not isinstance(value, _CONTAINERS):
            return
        for item in value:
            self.walk(item, chars_per_unit, margin, depth + 1)

    def check_text(self, value: Any) -> None:
        # Other objects would write out what they hold, however much that is.
        if not isinstance(value, _TEXTS):
            raise _Overrun(f"its template writes a {type(value).__name__}, which is no text")

    def check_bits(self, n_bits: int) -> None:
        if n_bits > MAX_BITS:
            raise _Overrun(f"its template makes a number of {n_bits} bits, over {MAX_BITS}")

    def guarded(self, function: Any, look: Callable[[Any], Any]) -> Callable[..., Any]:
        """A filter or test of jinja2's own that pays for what it looks at and for what it makes."""
        # jinja2 hands some of them its own state first; that is no value of the template's.
        n_own = 1 if hasattr(function, "jinja_pass_arg") else 0

        @functools.wraps(function)
        def paying(*args: Any, **kwargs: Any) -> Any:
            for value in (*args[n_own:], *kwargs.values()):
                look(value)
            return self.made(function(*args, **kwargs))

        return paying


# -- what a template may use ----------------------------------------------------------------------


class _Generation(Extension):
    """`{% generation %}` marks the model's own words for training; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(_Metered):
    """The names and the settings that Hugging Face's templates are written for."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=self.written,
            optimized=False,  # it would compute constants before there is a price on them
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        self.globals = {
            "dict": dict,
            "namespace": Namespace,
            "range": safe_range,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }
        self.filters = self._filters()
        self.tests = {name: self.guarded(test, self.read) for name, test in self.tests.items()}

    def _filters(self) -> dict[str, Any]:
        own: dict[str, Any] = {
            "format": self.format_text,
            "indent": self.indent,
            "join": self.join,
            "replace": self.replace,
            "string": self.text,
            "tojson": self.to_json,
        }
        looks = ((_GLANCING, self.glance), (_STEPPING, self.step_and_read), (_READING, self.read))
        for names, look in looks:
            own |= {name: self.guarded(self.filters[name], look) for name in names}
        return own

    # Operators and methods

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            self._price_format(left, right)
        elif operator == "*":
            self._price_product(left, right)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            self.check_bits(left.bit_length() * abs(right))
        return self.made(super().call_binop(context, operator, left, right))

    def _price_product(self, left: Any, right: Any) -> None:
        if isinstance(left, int) and isinstance(right, int):
            self.check_bits(left.bit_length() + right.bit_length())
        for value, times in ((left, right), (right, left)):
            if isinstance(value, Sized) and isinstance(times, int):
                self.make(len(value) * max(times, 0))

    def _price_format(self, text: str, values: Any) -> None:
        if _WIDE_FORMAT.search(text):
            raise _Overrun("its template formats with a width of over three digits")
        self.make(len(text) + len(self.text(values)) * text.count("%"))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        for kind, allowed in _METHODS:
            if isinstance(obj, kind):
                return attr in allowed
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """jinja2 asks here for a safe stand-in whenever a template takes `str.format`."""
        owner = getattr(value, "__self__", None)
        if isinstance(owner, str) and value.__name__ == "format":
            return functools.partial(self.fill_fields, owner)
        return None

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(obj, "__self__", None)
        if owner is self:  # a price that `_Pricing` put in
            return obj(*args)
        self.charge(ITEM)
        if isinstance(owner, str) or isinstance(obj, LoopContext):  # the latter loops again
            for value in args:
                self.step(value)
        if isinstance(owner, str):
            args = self._price_method(owner, obj.__name__, args)
        return self.made(super().call(context, obj, *args, **kwargs))

    def _price_method(self, owner: str, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        self.read(owner)
        if name == "join" and args:
            items = [self.read(item) for item in args[0]]
            self.make(sum(len(owner) + len(item) for item in items))
            return (items,)
        if name == "replace" and len(args) > 1:
            self.make(len(owner) + owner.count(args[0]) * len(args[1]))
        return args

    # Filters that can make more than they read

    def text(self, value: Any) -> str:
        self.check_text(value)
        self.walk(value, MADE)
        return str(value)

    def join(self, value: Iterable[Any], d: str = "", attribute: str | None = None) -> str:
        items = value if attribute is None else map(make_attrgetter(self, attribute), value)
        texts = [self.text(item) for item in items]
        separator = self.text(d)
        self.make(sum(len(separator) + len(text) for text in texts))
        return separator.join(texts)

    def concatenate(self, *values: Any) -> str:
        """What `~` does."""
        return self.join(values)

    def replace(self, value: Any, old: Any, new: Any, count: int = -1) -> str:
        text, old, new = self.text(value), self.text(old), self.text(new)
        self.make(len(text) + text.count(old) * len(new))
        return text.replace(old, new, count)

    def indent(
        self, value: Any, width: int | str = 4, first: bool = False, blank: bool = False
    ) -> str:
        text = self.text(value)
        n_margin = width if isinstance(width, int) else len(width)
        self.make(len(text) + (text.count("\n") + 1) * n_margin)
        return do_indent(text, width, first, blank)

    def format_text(self, value: Any, *args: Any, **kwargs: Any) -> str:
        text, values = self.text(value), kwargs or args
        self._price_format(text, values)
        return text % values

    def fill_fields(self, text: str, /, *args: Any, **kwargs: Any) -> str:
        """`str.format` for plain fields: others can have any width and reach any attribute."""
        if re.search("[{}]", _PLAIN_FIELD.sub("", text)):
            raise _Overrun("its template uses str.format with more than plain {} or {name}")
        n_longest = max((len(self.text(v)) for v in (*args, *kwargs.values())), default=0)
        self.make(len(text) + text.count("{") * n_longest)
        return text.format(*args, **kwargs)

    def to_json(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """As Hugging Face has it: JSON for a model to read, without HTML's escapes."""
        margin = (indent or 0) + sum(map(len, separators or ()))
        self.walk(value, MADE, margin)
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    # The C library knows widths, as in "%999999999d"; no template needs them.
    if len(form) > 100 or _ODD_DATE_FORMAT.search(form):
        raise _Overrun("its template asks for the date in an odd format")
    return datetime.now().strftime(form)


# -- prices that the environment cannot see by itself ----------------------------------------------


def _priced(template: nodes.Template, env: _Environment) -> nodes.Template:
    """Charge for loops, macros, comparisons, slices and `~` where the template has them."""
    _Pricing().visit(template)
    template.set_lineno(1)  # only where the new nodes have none
    template.set_environment(env)
    return template


def _ask(method: str, *args: nodes.Node) -> nodes.Call:
    """A call of the environment's own method, by a name that no template can write."""
    return nodes.Call(nodes.EnvironmentAttribute(method), list(args), [], None, None)


class _Pricing(NodeTransformer):
    def visit_For(self, node: nodes.For) -> nodes.Node:
        node.iter = _ask("step", node.iter)
        return self._with_turns(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        return self._with_turns(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:
        return self._with_turns(node)

    def _with_turns(self, node: nodes.For | nodes.Macro | nodes.CallBlock) -> nodes.Node:
        n_written = sum(len(text.data) for text in node.find_all(nodes.TemplateData))
        node.body.insert(0, nodes.ExprStmt(_ask("turn", nodes.Const(n_written))))
        return self.generic_visit(node)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = _ask("read", node.expr)
        for operand in node.ops:
            operand.expr = _ask("read", operand.expr)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            node.node = _ask("step", node.node)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _ask("concatenate", *node.nodes)
