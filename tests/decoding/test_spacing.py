"""White space by habit, over JSON as people and models write it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlay.decoding.spacing import Spacing


def after(text: str) -> Spacing:
    spacing = Spacing()
    spacing.read(text.encode())
    return spacing


def test_nothing_is_known_of_the_first_line() -> None:
    assert after("{").guess(ord('"')) is None


def test_a_comma_is_followed_as_the_opening_was() -> None:
    spacing = after('{\n  "a": "x",')
    assert spacing.guess(ord('"')) == b"\n  "


def test_a_colon_is_followed_by_what_followed_the_last_one() -> None:
    assert after('{\n  "a":').guess(ord('"')) == b" "
    assert after('{"a":1,"b":').guess(ord('"')) == b""


def test_deeper_objects_are_indented_by_their_depth() -> None:
    spacing = after('{\n  "a": 1,\n  "b": {')
    assert spacing.guess(ord('"')) == b"\n    "
    spacing.read(b'\n    "c": 2')
    assert spacing.guess(ord("}")) == b"\n  "


def test_after_a_colon_every_value_is_spaced_as_the_last_one() -> None:
    assert after('{"a":"x","b":').guess(ord("[")) == b""
    assert after('{"a": "x", "b":').guess(ord("[")) == b" "


def test_an_indent_that_is_no_multiple_of_its_depth_comes_again() -> None:
    assert after('{\n "a": {\n       "b": 1\n },\n "c": {').guess(ord('"')) == b"\n       "


def test_white_space_that_has_begun_is_completed() -> None:
    assert after('{\n  "a": "x",\n ').guess(ord('"')) == b" "


def test_inside_a_string_there_is_none_to_guess() -> None:
    assert after('{\n  "a": "x, y').guess(ord("z")) == b""
    assert after('{\n  "a": "x\\"').guess(ord("z")) == b""


def test_what_may_come_is_read_by_itself_and_makes_no_habits() -> None:
    first = after('{\n  "a": "x",')
    ahead = first.ahead()
    ahead.read(b'"b": {')
    assert ahead.guess(ord('"')) == b"\n    "
    assert first.guess(ord('"')) == b"\n  "
    first.read(b'\n  "b": 1}')
    assert ahead.guess(ord('"')) == b"\n    "


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
            assert after(text[:start].decode()).guess(text[at]) == text[start:at]
