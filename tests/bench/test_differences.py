"""The first difference of two texts, with the candidates' gap."""

from __future__ import annotations

import pytest

from parlay.bench.differences import first_difference
from parlay.bench.subjects.subject import ScoredToken

SCORED = [
    ScoredToken("The", -0.1, (("The", -0.1), ("A", -2.0))),
    ScoredToken(" cat", -0.5, ((" cat", -0.5), (" dog", -0.6), (" do", -3.0))),
    ScoredToken(" sat", -0.2, ((" sat", -0.2),)),
]


def test_equal_texts_have_no_difference() -> None:
    assert first_difference("p", "same", "same", SCORED) is None


def test_token_and_gap_are_found_by_text() -> None:
    found = first_difference("p", "The cat sat", "The dog ran", SCORED)
    assert found is not None
    assert (found.character, found.token) == (4, 1)
    assert (found.baseline, found.candidate) == (" cat".strip(), "dog")
    assert found.gap == pytest.approx(0.1)


def test_without_scores_the_place_is_still_told() -> None:
    found = first_difference("p", "The cat", "The dog", ())
    assert found is not None
    assert (found.character, found.token, found.gap) == (4, None, None)


def test_scores_of_another_text_are_not_believed() -> None:
    found = first_difference("p", "A cat sat down", "A cat sat up", SCORED)
    assert found is not None
    assert found.token is None


def test_an_alternative_that_was_not_scored_has_no_gap() -> None:
    found = first_difference("p", "The cat sat", "The emu sat", SCORED)
    assert found is not None
    assert (found.token, found.candidate, found.gap) == (1, None, None)


def test_a_text_that_ends_early_differs_where_it_ends() -> None:
    found = first_difference("p", "The cat sat", "The cat", SCORED)
    assert found is not None
    assert (found.character, found.token) == (7, 2)
