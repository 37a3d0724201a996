"""Parlay from Python: what the package gives, and schemas and grammars, with drafts and without."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import parlay as package
from parlay import Parlay
from parlay.errors import BadRequest, Closed, ParlayError

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


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"max_tokens": 2.5}, "max_tokens is 2.5; give a whole number"),
        ({"window": "x"}, "window is 'x'; give a whole number or None"),
        ({"draft": ["suffix"]}, r"draft is \['suffix'\]; give text or None"),
        ({"prediction": 5}, "prediction is 5; give text or None"),
        ({"temperature": "x"}, "temperature is 'x'; give a number"),
        ({"mode": "bogus"}, "mode is 'bogus'; give exact, faithful or None"),
        ({"context_full": "bogus"}, "context_full is 'bogus'; give stop or slide"),
        ({"stop": 5}, "stop is 5; give text, a list of texts or None"),
        ({"max_token": 5}, "unknown option: max_token; did you mean max_tokens?"),
        ({"greedy": True}, "unknown option: greedy"),
    ],
)
def test_an_option_that_cannot_be_used_is_named(
    parlay: Parlay, option: dict[str, Any], said: str
) -> None:
    with pytest.raises(BadRequest, match=said.replace("?", r"\?")):
        parlay.generate("hello", **option)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"mode": "bogus"}, "mode is 'bogus'; give exact, faithful or None"),
        ({"slots": "a"}, "slots is 'a'; give a whole number"),
        ({"window": "x"}, "window is 'x'; give a whole number or None"),
        ({"context_size": "most"}, "context_size is 'most'; give a whole number or auto"),
        ({"draft": ["suffix"]}, r"draft is \['suffix'\]; give text"),
        ({"devices": "nowhere"}, "no device 'nowhere'"),
        ({"lora": "missing.gguf"}, "missing.gguf"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(
    target: Path, setting: dict[str, Any], said: str
) -> None:
    with pytest.raises(ParlayError, match=said):
        Parlay(target, **setting)


def test_one_stop_string_is_not_its_letters(parlay: Parlay) -> None:
    whole = parlay.generate("on and on", max_tokens=40).text
    stop = whole[4:8]
    assert parlay.generate("on and on", max_tokens=40, stop=stop).text == whole.partition(stop)[0]
    listed = parlay.generate("on and on", max_tokens=40, stop=[stop])
    assert listed.text == whole.partition(stop)[0]


def test_the_json_of_an_answer_has_the_log_probabilities_that_were_asked_for(
    parlay: Parlay,
) -> None:
    answer = parlay.generate("hello", max_tokens=5, logprobs=2, temperature=0)
    told = json.loads(json.dumps(answer.as_dict()))["logprobs"]
    assert [one["token"] for one in told] == list(answer.tokens)
    assert "".join(one["text"] for one in told) == answer.text
    for one in told:
        likeliest, next_one = one["top"]
        assert likeliest == {"token": one["token"], "logprob": one["logprob"]}  # it is greedy
        assert next_one["logprob"] <= likeliest["logprob"] <= 0
    assert parlay.generate("hello", max_tokens=5).as_dict()["logprobs"] is None


def test_a_prompt_that_is_none_is_refused(parlay: Parlay) -> None:
    with pytest.raises(BadRequest, match="prompt is 5; give text or a list of mappings"):
        parlay.generate(5)  # type: ignore[arg-type]


def test_a_closed_runtime_says_so(target: Path) -> None:
    """llama.cpp would read freed memory: the process ended without a word."""
    with Parlay(target, draft="none", threads=1, context_size=512) as closed:
        pass
    vocabulary = closed.engine.model.vocabulary
    for use in (
        lambda: closed.generate("hello"),
        lambda: closed.stream([{"role": "user", "content": "hello"}]),
        lambda: closed.generate("hello", raw=True, grammar='root ::= "on"'),
        lambda: closed.tokens("hello"),
        lambda: vocabulary.text_of(1),
        vocabulary.fingerprint,
        lambda: closed.engine.model.description,
    ):
        with pytest.raises(Closed, match="closed; open"):
            use()


def test_the_package_gives_all_it_names_and_nothing_else() -> None:
    assert all(getattr(package, name) for name in package.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        package.Nothing  # noqa: B018


def test_a_part_starts_without_the_rest() -> None:
    """Processes that only read a grammar or keep a record are started often."""
    code = "import sys, parlay; parlay.errors; sys.exit('parlay.engine' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
