"""Options: what fits the type its field declares, and what is said of what does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pytest

from parlay.errors import BadRequest
from parlay.option_types import check_options, texts


def quietly() -> None:
    pass


@dataclass(frozen=True)
class Options:
    n: int = 1
    share: float = 0.5
    name: str = "a"
    on: bool = True
    mode: Literal["exact", "faithful"] | None = None
    size: int | Literal["auto"] = "auto"
    words: str | Sequence[str] = ()
    shares: Sequence[float] = ()
    bias: Mapping[int, float] = field(default_factory=dict)
    schema: Mapping[str, Any] | None = None
    tell: Callable[[], None] = quietly
    inner: Options | None = None
    made: int = field(init=False, default=0)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"n": np.int64(3), "share": 1, "shares": [1, 0.5], "size": 8},
        {"share": np.float32(0.5), "words": "one", "bias": {3: -1, 4: float("-inf")}},
        {"words": ["one", "two"], "schema": {"type": ["object"]}, "mode": "exact"},
        {"inner": Options(), "tell": print},
    ],
)
def test_what_is_declared_fits(given: dict[str, Any]) -> None:
    check_options(Options(**given))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("n", 2.5, "n is 2.5; give a whole number"),
        ("n", True, "n is True; give a whole number"),
        ("share", "x", "share is 'x'; give a number"),
        ("name", ["a"], "name is ['a']; give text"),
        ("on", 1, "on is 1; give True or False"),
        ("mode", "bogus", "mode is 'bogus'; give exact, faithful or None"),
        ("mode", ["exact"], "mode is ['exact']; give exact, faithful or None"),
        ("size", "all", "size is 'all'; give a whole number or auto"),
        ("words", [1], "words is [1]; give text or a list of texts"),
        ("shares", "1,2", "shares is '1,2'; give a list of numbers"),
        ("bias", {"3": 1.0}, "bias is {'3': 1.0}; give a mapping of whole numbers to numbers"),
        ("bias", [3], "bias is [3]; give a mapping of whole numbers to numbers"),
        ("schema", "{}", "schema is '{}'; give a mapping of texts to anything or None"),
        ("tell", "me", "tell is 'me'; give a function"),
        ("inner", 5, "inner is 5; give Options or None"),
    ],
)
def test_what_is_not_is_named_in_one_line(name: str, value: object, said: str) -> None:
    with pytest.raises(BadRequest) as raised:
        check_options(Options(**{name: value}))  # type: ignore[arg-type]
    assert raised.value.message == said


def test_a_long_value_is_cut_and_stays_on_one_line() -> None:
    with pytest.raises(BadRequest) as raised:
        check_options(Options(n="line\n" * 1000))  # type: ignore[arg-type]
    assert len(raised.value.message) < 120 and "\n" not in raised.value.message


def test_fields_that_nobody_types_in_are_left_alone() -> None:
    check_options(Options(n="many"), but=("n",))  # type: ignore[arg-type]


def test_one_text_is_not_a_list_of_letters() -> None:
    assert texts("How") == ("How",)
    assert texts(["How", "so"]) == ("How", "so") and texts(None) == ()
