"""Options that belong together as one value: a frozen dataclass whose fields are the options.

Knows typer's way of reading a signature; what the options mean is the groups' business.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_type_hints

Verb = Callable[..., None]


def with_groups(verb: Verb) -> Verb:
    """A verb whose parameters of such a type become options, one for each field."""
    hints = get_type_hints(verb, include_extras=True)
    own = inspect.signature(verb)
    groups = {name: hints[name] for name in own.parameters if is_dataclass(hints[name])}
    parameters = [
        each
        for name, parameter in own.parameters.items()
        for each in _options(parameter.replace(annotation=hints[name]))
    ]

    @functools.wraps(verb)
    def run(**given: Any) -> None:
        made = {
            name: group(**{field.name: given.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        verb(**given, **made)

    del run.__wrapped__  # typer would read the verb's own signature
    run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def _options(parameter: inspect.Parameter) -> Iterator[inspect.Parameter]:
    """A parameter by its name, or the fields of its group: its own first, then what it shares."""
    named, group = inspect.Parameter.KEYWORD_ONLY, parameter.annotation
    if not is_dataclass(group):
        yield parameter.replace(kind=named)
        return
    hints = get_type_hints(group, include_extras=True)
    for field in sorted(fields(group), key=lambda field: field.name not in group.__annotations__):
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        yield inspect.Parameter(field.name, named, default=default, annotation=hints[field.name])
