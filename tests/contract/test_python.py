"""Parlay from Python: an answer, a stream, and errors that say what to do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from parlay import Parlay
from parlay.errors import BadRequest, ParlayError
from tests import doors


@pytest.fixture(scope="module")
def parlay(model: Path, guesser: Path) -> Iterator[Parlay]:
    with doors.python(model, f"suffix,{guesser}") as found:
        yield found


def test_a_streams_pieces_are_the_answer(parlay: Parlay) -> None:
    stream = parlay.stream("hello there", temperature=0, max_tokens=24)
    pieces = list(stream)
    assert "".join(piece.text for piece in pieces) == stream.answer.text
    assert stream.answer.text == parlay.generate("hello there", temperature=0, max_tokens=24).text


def test_drafts_change_nothing(parlay: Parlay) -> None:
    plain = parlay.generate("hello there", temperature=0, max_tokens=40, draft="none")
    drafted = parlay.generate("hello there", temperature=0, max_tokens=40, draft="model")
    assert drafted.text == plain.text and drafted.exact
    assert drafted.speculation.n_accepted > 0 == plain.speculation.n_drafted


def test_leaving_a_stream_early_ends_the_answer(parlay: Parlay) -> None:
    for _ in range(3):  # one slot: a next one waits until the last has ended
        for _piece in parlay.stream("hello", max_tokens=10**6, context_full="slide"):
            break
    assert parlay.generate("hello", max_tokens=4).finish_reason == "length"


def test_an_answer_obeys_its_schema(parlay: Parlay) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["on"]}}, "required": ["a"]}
    schema["additionalProperties"] = False  # type: ignore[assignment]
    answer = parlay.generate("hello", json_schema=schema, max_tokens=80)
    assert '"a"' in answer.text and '"on"' in answer.text and answer.finish_reason == "stop"


@pytest.mark.parametrize(
    "options",
    [{"temprature": 1}, {"temperature": -1}, {"draft": "magic"}, {"max_tokens": 0}, {"top_p": 2}],
)
def test_what_makes_no_sense_is_refused_in_one_line(
    parlay: Parlay, options: dict[str, Any]
) -> None:
    with pytest.raises((BadRequest, ParlayError)) as caught:
        parlay.generate("hello", **options)
    (name,) = options
    assert name in str(caught.value) or str(options[name]) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_closed_one_says_so(model: Path) -> None:
    made = doors.python(model)
    made.close()
    with pytest.raises(ParlayError, match="closed"):
        made.generate("hello")
