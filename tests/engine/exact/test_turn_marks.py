"""Who said what in a chat, by the marks of its template."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from parlay.engine.exact.turn_marks import TurnMarks, _answer_mark, marks_of
from parlay.llama.model import Model
from parlay.llama.settings import ModelSettings

OPEN, END, USER, US = 1, 2, 5, 6
MARKS = TurnMarks(((OPEN, USER),), (OPEN, US), (END,))
CHAT = (OPEN, USER, 9, 9, END, OPEN, US, 8, 8, END, OPEN, USER, 9, 9, END, OPEN, US)
#       0     1     2  3  4    5     6   7  8  9    10    11    12 13 14   15    16


def own(tokens: Sequence[int]) -> list[int]:
    return [i for i in range(len(tokens)) if MARKS.first_own(tokens, i, i + 1) == i]


def test_an_answer_reaches_from_its_mark_to_its_end() -> None:
    assert own(CHAT) == [6, 7, 8, 9, 16]
    assert MARKS.first_own(CHAT, 0, len(CHAT)) == 6
    assert MARKS.first_own(CHAT, 10, 16) is None


def test_what_follows_a_token_does_not_change_who_said_it() -> None:
    for n in range(2, len(CHAT)):
        assert own(CHAT[:n]) == [i for i in own(CHAT) if i < n]


def test_of_a_text_that_is_no_chat_any_token_may_be_an_answer_s() -> None:
    assert own(CHAT[1:]) == list(range(len(CHAT) - 1))
    assert MARKS.first_own(CHAT[1:], 3, 3) is None


def test_marks_are_read_out_of_the_template(tiny_llama: Path) -> None:
    with Model(tiny_llama, ModelSettings(gpu_layers=0)) as model:
        found = marks_of(model)
        assert found is not None
        write = model.vocabulary.text_of
        assert ["".join(map(write, each)) for each in found.openings] == [
            "<|im_start|>s",
            "<|im_start|>u",
        ]
        assert "".join(map(write, found.answer)) == "<|im_start|>a"
        assert "<|im_end|>" in map(write, found.ends)


@pytest.mark.parametrize(
    ("asked", "opened", "mark"),
    [
        ([1, 5, 9, 2], [1, 5, 9, 2, 1, 6, 3], (1, 6)),  # both have a mark, and a name after it
        ([5, 9, 2], [5, 9, 2, 6, 3], (6,)),  # a mark for each
        ([1, 5, 9], [1, 5, 9], None),  # nothing is written before an answer,
        ([1, 5, 9], [1, 5, 9, 1, 5], None),  # nothing of its own,
        ([], [1, 6], None),  # or the template refuses such a chat
    ],
)
def test_the_mark_of_an_answer_is_as_short_as_it_can_be(
    asked: list[int], opened: list[int], mark: tuple[int, ...] | None
) -> None:
    assert _answer_mark(asked, opened) == mark
