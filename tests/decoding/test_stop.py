"""Stop strings in text that comes in pieces."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.decoding.stop import StopStrings

TEXTS = st.text("abc", max_size=30)
STOPS = st.lists(st.text("abc", min_size=1, max_size=5), max_size=4)
CUTS = st.lists(st.integers(0, 30), max_size=12)


def first_stop(text: str, stops: list[str]) -> int | None:
    """Where the text ends: before the stop string that is complete first."""
    for end in range(len(text) + 1):
        starts = [end - len(s) for s in stops if text[:end].endswith(s)]
        if starts:
            return min(starts)
    return None


def pieces(text: str, cuts: list[int]) -> list[str]:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    return [text[a:b] for a, b in pairwise(edges)]


def chunked(test: Callable[[str, list[str], list[int]], None]) -> Callable[[], None]:
    """Any text, any stop strings, cut anywhere."""
    return settings(max_examples=200)(given(text=TEXTS, stops=STOPS, cuts=CUTS)(test))


@chunked
def test_any_chunking_shows_what_comes_before_the_first_stop_string_of_the_whole_text(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    rule = StopStrings(stops)
    shown = "".join(rule.push(piece) for piece in pieces(text, cuts)) + rule.flush()
    end = first_stop(text, stops)
    assert shown == (text if end is None else text[:end])
    assert (rule.hit is None) == (end is None)
    assert rule.hit is None or rule.hit in stops


@chunked
def test_only_what_may_still_become_a_stop_string_is_held_back(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    rule = StopStrings(stops)
    came = shown = ""
    for piece in pieces(text, cuts):
        came += piece
        shown += rule.push(piece)
        if rule.hit is not None:
            return
        held = came[len(shown) :]
        assert came.startswith(shown)
        assert not held or any(s.startswith(held) and s != held for s in stops)


def test_the_start_of_a_stop_string_is_held_until_it_is_decided() -> None:
    rule = StopStrings(["<|end|>"])
    assert rule.push("text <|en") == "text "
    assert rule.push("tropy") == "<|entropy"
    assert rule.push(" <") == " "
    assert rule.hit is None
    assert rule.flush() == "<"
    assert rule.flush() == ""


def test_an_overlap_of_the_stop_string_with_itself_is_not_missed() -> None:
    rule = StopStrings(["aab"])
    assert "".join(rule.push(c) for c in "caaab") == "ca"
    assert rule.hit == "aab"


def test_the_string_that_is_complete_first_wins_in_any_chunking() -> None:
    for chunks in (["xbcd"], ["xb", "c", "d"]):
        rule = StopStrings(["bcd", "c"])
        assert "".join(rule.push(chunk) for chunk in chunks) == "xb"
        assert rule.hit == "c"


def test_nothing_is_shown_after_a_hit() -> None:
    rule = StopStrings(["stop"])
    assert rule.push("go stop on") == "go "
    assert rule.push("and on") == ""
    assert rule.flush() == ""


@pytest.mark.parametrize("stops", [[], [""], ["", ""]])
def test_without_stop_strings_text_passes_at_once(stops: list[str]) -> None:
    rule = StopStrings(stops)
    assert rule.push("anything") == "anything"
    assert rule.flush() == ""
    assert rule.hit is None


def test_characters_of_several_bytes_are_compared_as_characters() -> None:
    rule = StopStrings(["🙂終"])
    assert rule.push("ok 🙂") == "ok "
    assert rule.push("終 more") == ""
    assert rule.hit == "🙂終"
