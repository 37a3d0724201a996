"""Fields of a body that we do not know: found, told to the client, or refused.

Knows bodies, not what is done with them. A field that another engine follows and that would change
the text is refused even so: an answer that is not the one asked for would be worse than none.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from parlay.ask import Remark
from parlay.front.errors import Failure

HEADER = "X-Parlay-Warnings"
MAX_REMARKS = 16
# What other engines do with these changes the text. Each with the values that change nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "bad_words": ([],),
    "best_of": (1,),
    "dry_multiplier": (0,),
    "dynatemp_range": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "ignore_eos": (False,),
    "length_penalty": (1,),
    "lora": ([],),
    "min_tokens": (0,),
    "mirostat": (0,),
    "prefill": (),
    "structured_outputs": (),
    "top_n_sigma": (-1, 0),
    "xtc_probability": (0,),
}


def unknown_fields(body: BaseModel) -> list[str]:
    """The dotted names of the fields no model of ours has; numbers in lists are left out."""
    return list(dict.fromkeys(_walk(body, "")))


def _walk(value: object, place: str) -> Iterator[str]:
    if isinstance(value, BaseModel):
        extra = value.model_extra or {}
        for name, given in value:
            if name not in extra:
                yield from _walk(given, f"{place}{name}.")
            elif given is not None:
                yield f"{place}{name}"
    elif isinstance(value, list) and value and isinstance(value[0], BaseModel):
        for item in value:
            yield from _walk(item, place)


def tell(names: Sequence[str], known: Sequence[str], *, refuse: bool) -> tuple[Remark, ...]:
    """What is said about unknown fields; `refuse`: the first of them is an error."""
    if refuse and names:
        raise Failure(400, _message(names[0], known), param=_shown(names[0]))
    few = names[:MAX_REMARKS]  # looking for the nearest known name takes its time
    return tuple(Remark(_shown(name), f"{_message(name, known)} (ignored)") for name in few)


def refuse_unfollowed(extra: Mapping[str, Any]) -> None:
    """Refuse what would change the text and cannot be followed."""
    for name, value in extra.items():
        if value is not None and name in _NEUTRAL and value not in _NEUTRAL[name]:
            message = f"{name} would change the text and is not supported here; leave it out"
            raise Failure(400, message, param=name)


def header(told: Sequence[Remark]) -> dict[str, str]:
    """The names, for whoever looks at headers only."""
    return {HEADER: ", ".join(one.param for one in told)} if told else {}


def _message(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name.rpartition(".")[2], known, n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"unknown field {_shown(name)}{hint}"


def _shown(name: str) -> str:
    """A client's own words, fit for a header."""
    return re.sub(r"[^\w.\[\]-]", "?", name, flags=re.ASCII)[:100] or "?"
