"""Structured output from Python: schemas and grammars hold, with drafts and without."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from parlay import Parlay
from parlay.errors import BadRequest

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "n": {"enum": [1, 22]}},
    "required": ["city", "n"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def parlay(target: Path) -> Iterator[Parlay]:
    with Parlay(target, draft="suffix", window=4, threads=1, context_size=512) as found:
        yield found


@pytest.mark.parametrize("draft", ["suffix", "none"])
def test_an_answer_obeys_its_schema(parlay: Parlay, draft: str) -> None:
    answer = parlay.generate("hello", json_schema=SCHEMA, max_tokens=200, draft=draft)
    assert answer.finish_reason == "stop"
    assert set(json.loads(answer.text)) == {"city", "n"}


def test_drafts_do_not_change_what_a_grammar_lets_through(parlay: Parlay) -> None:
    grammar = 'root ::= ("he" | "on" | "and" | " the")+'
    options = {"grammar": grammar, "max_tokens": 24, "temperature": 0.8, "seed": 3}
    drafted = parlay.generate("on and on and on", **options)
    plain = parlay.generate("on and on and on", draft="none", **options)
    assert drafted.text == plain.text != ""


def test_one_form_at_a_time(parlay: Parlay) -> None:
    with pytest.raises(BadRequest, match="not both"):
        parlay.generate("hello", json_schema=SCHEMA, grammar='root ::= "on"')
