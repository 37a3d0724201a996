"""The index of a text, held against a search through it."""

from __future__ import annotations

from array import array
from itertools import pairwise
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlay.proposers.index import SEPARATOR, Index, Match
from tests.calls import python_calls

texts = st.lists(st.integers(0, 2), max_size=120)
SIZES = (2, 4, 8)


def fed(*parts: list[int]) -> Index:
    index = Index(SIZES)
    for part in parts:
        index.feed(part)
    return index


def searched(tokens: list[int]) -> int:
    """Length of the longest suffix that occurred earlier."""
    n = len(tokens)
    for m in range(n - 1, 1, -1):
        if any(tokens[end - m : end] == tokens[n - m :] for end in range(m, n)):
            return m
    return 0


@given(tokens=texts, cuts=st.sets(st.integers(0, 120)))
def test_text_in_pieces_is_indexed_as_in_one(tokens: list[int], cuts: set[int]) -> None:
    whole = fed(tokens)
    at = [0, *sorted(min(cut, len(tokens)) for cut in cuts), len(tokens)]
    pieces = fed(*(tokens[a:b] for a, b in pairwise(at)))
    assert pieces.match() == whole.match()


@given(tokens=st.lists(st.integers(0, 2), max_size=17))
def test_longest_earlier_occurrence_is_what_a_search_finds(tokens: list[int]) -> None:
    length, ends = fed(tokens).match()
    n = len(tokens)
    assert length == searched(tokens)
    found = [
        e for e in range(n - 1, length - 1, -1) if tokens[e - length : e] == tokens[n - length :]
    ]
    assert ends == (found if length else [])


@given(tokens=texts)
def test_every_place_found_really_matches(tokens: list[int]) -> None:
    length, ends = fed(tokens).match()
    n = len(tokens)
    assert bool(ends) == (searched(tokens) >= 2)
    assert all(tokens[end - length : end] == tokens[n - length :] for end in ends)


@given(tokens=texts, n=st.integers(0, 120), more=texts)
def test_cut_text_is_as_if_the_rest_had_never_been_read(
    tokens: list[int], n: int, more: list[int]
) -> None:
    index = fed(tokens)
    index.cut(n)
    index.feed(more)
    assert index.text.tolist() == [*tokens[:n], *more]
    assert index.match() == fed([*tokens[:n], *more]).match()


@given(tokens=texts, other=texts)
def test_end_of_another_text_is_found_as_a_search_finds_it(
    tokens: list[int], other: list[int]
) -> None:
    tail = array("i", other[-64:])
    length, ends = fed([*tokens, SEPARATOR]).match_of(tail)
    assert all(tokens[end - length : end] == other[len(other) - length :] for end in ends)
    pairs = {tuple(tokens[end - 2 : end]) for end in range(2, len(tokens) + 1)}
    assert bool(ends) == (len(other) >= 2 and tuple(other[-2:]) in pairs)


def test_no_match_crosses_from_one_text_into_the_next() -> None:
    index = fed([1, 2, SEPARATOR, 3, 4, SEPARATOR])
    assert index.match_of(array("i", [2, 3])) == (0, [])


def test_an_answer_after_a_long_prompt_does_not_read_the_prompt_again() -> None:
    index = fed(list(range(30_000)))
    with mock.patch.object(Index, "_add_all") as again:
        for token in range(2_000):
            index.feed([token])
    again.assert_not_called()


@pytest.mark.parametrize("period", [1, 7, 997, 10**6])
def test_a_long_text_is_read_in_as_few_calls_of_python_as_a_short_one(period: int) -> None:
    tokens = [i * i % period for i in range(40_000)]
    short = python_calls(lambda: fed(tokens[:400]))[1]
    assert python_calls(lambda: fed(tokens))[1] == short < 200


def test_a_token_of_an_answer_is_indexed_in_one_call_of_python() -> None:
    index = fed(list(range(100)))
    few = python_calls(lambda: index.feed([1] * 8))[1]
    assert python_calls(lambda: index.feed([1] * 16))[1] - few == 8


def test_what_all_places_went_on_with_is_taken_at_once() -> None:
    """Places that part after many tokens alike take calls by where they part, not by tokens."""
    alike = list(range(10, 70))
    text = array("i", [1, *alike, 2, 1, *alike, 3, 1, *alike, 2, 1])
    ends = [len(alike) * n + n + n + 1 for n in (2, 1, 0)]
    (tokens, confidence), n_calls = python_calls(lambda: Match(text, 1, ends).follow(62))
    assert tokens == (*alike, 2, 1)
    assert confidence[0] == 3 / (3 + 3 / 1) and confidence[60] == 2 / (3 + 3 / 61)
    assert n_calls < 62 + 30  # one for each confidence
