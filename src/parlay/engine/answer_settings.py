"""What an answer is asked for with, by the names of the Python interface.

Knows names, types and defaults; what they are to a request is the interface's affair.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from parlay.decoding.sampling import Sampling
from parlay.engine.request import ContextFull, Mode
from parlay.errors import BadRequest
from parlay.option_types import check_options

_DRAWN = [item.name for item in fields(Sampling) if item.init]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSettings:
    """What was said, and what holds where nothing was; beside the fields of `Sampling`."""

    max_tokens: int = 256
    stop: str | Sequence[str] | None = ()
    draft: str | None = None
    window: int | None = None
    mode: Mode | None = None
    context_full: ContextFull = "stop"
    logprobs: int | None = None
    raw: bool = False
    tools: Sequence[Mapping[str, Any]] | None = ()
    prediction: str | None = ""
    json_schema: Mapping[str, Any] | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        check_options(self)


_OWN = [item.name for item in fields(AnswerSettings)]


def options_of(given: Mapping[str, Any]) -> tuple[AnswerSettings, dict[str, Any]]:
    """Keywords by where they belong; what was said of samplers is as good as it will be taken."""
    for name in given:
        if name not in _OWN and name not in _DRAWN:
            nearest = difflib.get_close_matches(name, [*_OWN, *_DRAWN], n=1)
            hint = f"; did you mean {nearest[0]}?" if nearest else ""
            raise BadRequest(f"unknown option: {name}{hint}")
    own = {name: value for name, value in given.items() if name in _OWN}
    drawn = {name: value for name, value in given.items() if name in _DRAWN}
    Sampling(**drawn)
    return AnswerSettings(**own), drawn
