"""Options of the right type: each is held against what its field declares, or refused in one line.

Knows types, not what options mean: their ranges are checked by whoever has them.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import fields
from numbers import Integral, Real
from reprlib import Repr
from typing import Any, Literal, Union

from parlay.errors import BadRequest

# What a type is called, and several of it.
_WORDS = {
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    str: ("text", "texts"),
    bool: ("True or False", "truths"),
    types.NoneType: ("None", "Nones"),
}
_UNIONS = (Union, types.UnionType)
_SEVERAL = (tuple, list, Sequence, Collection)
_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 60


def check_options(settings: Any, *, but: Collection[str] = ()) -> None:
    """Refuse the first field of a dataclass that is not of its declared type. `but`: fields that
    nobody types in, and that would take long to look through."""
    made: Any = type(settings)
    for name, declared in _declared(made):
        if name not in but:
            check_option(name, getattr(settings, name), declared)


def check_option(name: str, value: object, declared: Any) -> None:
    """Refuse a value that is not of this type."""
    if not _fits(value, declared):
        shown = " ".join(_SHORT.repr(value).split())
        raise BadRequest(f"{name} is {shown}; give {_called(declared)}")


def texts(given: str | Sequence[str] | None) -> tuple[str, ...]:
    """A list of texts; one text is a list of one, not of its letters."""
    return (given,) if isinstance(given, str) else tuple(given or ())


@functools.cache
def _declared(made: type) -> tuple[tuple[str, Any], ...]:
    """What whoever makes one can give, with its type."""
    found = typing.get_type_hints(made)
    own = fields(made)
    return tuple((item.name, found[item.name]) for item in own if item.init)


def _fits(value: object, declared: Any) -> bool:
    origin, inside = typing.get_origin(declared), typing.get_args(declared)
    if declared is Any:
        return True
    if origin in _UNIONS:
        return any(_fits(value, part) for part in inside)
    if origin is Literal:
        return isinstance(value, str) and value in inside
    if origin in _SEVERAL:
        several = isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping)
        return several and all(_fits(item, inside[0]) for item in typing.cast(Any, value))
    if origin is Mapping:
        pairs = value.items() if isinstance(value, Mapping) else [(None, None)]
        return all(_fits(k, inside[0]) and _fits(v, inside[1]) for k, v in pairs)
    return _is_one(value, origin or declared)


def _is_one(value: object, declared: Any) -> bool:
    if declared is Callable:
        return callable(value)
    if declared in (int, float):  # numpy's are as good; truths are numbers to Python alone
        number = Integral if declared is int else Real
        return isinstance(value, number) and not isinstance(value, bool)
    return isinstance(value, declared)


def _called(declared: Any) -> str:
    *others, last = _names(declared)
    return f"{', '.join(others)} or {last}" if others else last


def _names(declared: Any) -> Iterator[str]:
    """What may be given, one by one."""
    origin, inside = typing.get_origin(declared), typing.get_args(declared)
    if origin in _UNIONS:
        for part in inside:
            yield from _names(part)
    elif origin is Literal:
        yield from map(str, inside)
    elif origin in _SEVERAL:
        yield f"a list of {_plural(inside[0])}"
    elif origin is Mapping:
        yield f"a mapping of {_plural(inside[0])} to {_plural(inside[1])}"
    elif (origin or declared) is Callable:
        yield "a function"
    else:
        yield _WORDS[declared][0] if declared in _WORDS else (origin or declared).__name__


def _plural(declared: Any) -> str:
    if declared is Any:
        return "anything"
    if typing.get_origin(declared) is Mapping:
        return "mappings"
    return _WORDS[declared][1] if declared in _WORDS else f"{declared.__name__} each"
