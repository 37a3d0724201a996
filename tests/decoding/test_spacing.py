"""White space by habit, over JSON as people and models write it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.decoding.spacing import Spacing


def after(text: str) -> Spacing:
    spacing = Spacing()
    spacing.read(text.encode())
    return spacing


def said(spacing: Spacing, mark: str) -> bytes | None:
    """The white space it puts before this."""
    found = spacing.guess(ord(mark))
    return None if found is None else found.text


def sure(spacing: Spacing, mark: str) -> float:
    found = spacing.guess(ord(mark))
    assert found is not None
    return found.sure


def test_nothing_is_known_of_the_first_line() -> None:
    assert said(after("{"), '"') is None


def test_a_comma_is_followed_as_the_opening_was() -> None:
    spacing = after('{\n  "a": "x",')
    assert said(spacing, '"') == b"\n  "


def test_a_colon_is_followed_by_what_followed_the_last_one() -> None:
    assert said(after('{\n  "a":'), '"') == b" "
    assert said(after('{"a":1,"b":'), '"') == b""


def test_deeper_objects_are_indented_by_their_depth() -> None:
    spacing = after('{\n  "a": 1,\n  "b": {')
    assert said(spacing, '"') == b"\n    "
    spacing.read(b'\n    "c": 2')
    assert said(spacing, "}") == b"\n  "


def test_after_a_colon_every_value_is_spaced_as_the_last_one() -> None:
    assert said(after('{"a":"x","b":'), "[") == b""
    assert said(after('{"a": "x", "b":'), "[") == b" "


def test_an_indent_that_is_no_multiple_of_its_depth_comes_again() -> None:
    assert said(after('{\n "a": {\n       "b": 1\n },\n "c": {'), '"') == b"\n       "


def test_white_space_that_has_begun_is_completed() -> None:
    assert said(after('{\n  "a": "x",\n '), '"') == b" "


def test_inside_a_string_there_is_none_to_guess() -> None:
    assert said(after('{\n  "a": "x, y'), "z") == b""
    assert said(after('{\n  "a": "x\\"'), "z") == b""


def test_what_may_come_is_read_by_itself_and_makes_no_habits() -> None:
    first = after('{\n  "a": "x",')
    ahead = first.ahead()
    ahead.read(b'"b": {')
    assert said(ahead, '"') == b"\n    "
    assert said(first, '"') == b"\n  "
    first.read(b'\n  "b": 1}')
    assert said(ahead, '"') == b"\n    "


def test_after_a_refused_line_the_next_of_its_kind_is_not_guessed_again() -> None:
    """The model writes everything on one line from here on: one such comma is enough."""
    spacing = after('{\n  "a": {\n    "x": 1,\n    "y": 2\n  },\n  "b": {"x": 1, "y":')
    spacing.read(b" 2,")
    assert said(spacing, '"') == b" "


def test_a_name_keeps_its_own_white_space_where_others_differ() -> None:
    one = '"head": {"n": "A"}, "teams": [ { "n": "B" }, { "n": "C" }]'
    spacing = after("{" + one + ", " + one[: one.index("{") + 1])
    assert said(spacing, '"') == b""
    spacing.read(b'"n": "A"}, "teams": [ {')
    assert said(spacing, '"') == b" "


def test_two_kinds_in_turn_are_not_believed() -> None:
    steady, turning = after("["), after("[")
    for i in range(8):
        steady.read(b"1, ")
        turning.read(b"1, " if i % 2 else b"1,")
    steady.read(b"1,")
    turning.read(b"1,")
    assert sure(steady, "1") > 0.9 and sure(turning, "1") < 0.5


def test_a_model_that_could_not_close_a_block_goes_on_as_if_it_had() -> None:
    """The grammar wanted another name where the model had begun the line of a bracket."""
    spacing = after('{\n  "a": [\n    {\n      "x": 1\n  ')
    assert said(spacing, ",") == b"  "
    spacing.read(b"  ,")
    assert said(spacing, '"') is None  # nothing is known of commas on a line of their own
    spacing.read(b'\n    "y": 2')
    assert said(spacing, "}") == b"\n  "
    spacing.read(b'\n  },\n  {\n    "x": 1')
    assert said(spacing, ",") == b"\n  "  # as after this name the last time
    spacing.read(b"\n  ,")
    assert said(spacing, '"') == b"\n  "


def test_a_list_is_as_long_as_the_last_one_of_its_name() -> None:
    spacing = after('{"a": {"n": [1, 2, 3]}, "b": {"n": [4')
    assert spacing.goes_on().text == b","
    spacing.read(b", 5, 6")
    assert spacing.goes_on().text == b"]"


def outside_strings(text: bytes) -> list[int]:
    """Places of marks and of the beginnings of values."""
    found, inside = [], False
    for i, byte in enumerate(text):
        if byte == ord('"'):
            inside = not inside
            if inside:
                found.append(i)
        elif not inside and byte in b"{}[],:":
            found.append(i)
    return found


@pytest.mark.parametrize("indent", [None, 1, 2, 4])
@settings(max_examples=30)
@given(keys=st.lists(st.text("ab{,", min_size=1, max_size=3), min_size=2, max_size=4, unique=True))
def test_an_object_of_a_kind_seen_before_is_spaced_as_it_was(
    indent: int | None, keys: list[str]
) -> None:
    one = {key: {"c": "x:y", "d": [1, "z"]} for key in keys}
    text = json.dumps([one, one], indent=indent).encode()
    second = text.index(b"}", len(text) // 2)
    for at in outside_strings(text):
        if at > second:
            start = at - (len(text[:at]) - len(text[:at].rstrip()))
            assert said(after(text[:start].decode()), chr(text[at])) == text[start:at]


def test_a_mark_that_came_without_its_comma_is_the_last_of_its_block() -> None:
    spacing = after('{\n  "a": [\n    "x')
    spacing.read(b'"')
    assert spacing.goes_on().text == b"]"
    whole = after('{\n  "a": [\n    "x"')  # of several tokens: nothing is known
    assert whole.goes_on().text == b","


def test_a_comma_that_must_come_where_a_block_was_to_end_is_spaced_like_its_end() -> None:
    spacing = after('{\n  "a": {\n    "b": "x')
    spacing.read(b'"')
    assert said(spacing, ",") == said(spacing, "}") == b"\n  "
    spacing.read(b"\n  ")
    spacing.read(b",")
    spacing.read(b'\n  "c": "y')
    assert said(after('{\n  "a": "x"'), ",") == b""


def test_that_marks_stand_alone_is_learned_where_they_always_do() -> None:
    spacing = Spacing()
    for token in ('{\n  "a": "x', '"', ",", '\n  "b": "y', '"'):
        spacing.read(token.encode())
    assert said(spacing, ",") == b""
