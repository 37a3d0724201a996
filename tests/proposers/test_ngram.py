"""Prompt lookup, held against a search through the whole text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlay.decoding.draft import NO_DRAFT, Draft
from parlay.errors import BadRequest
from parlay.proposers.ngram import NgramProposer
from parlay.proposers.proposer import Ask

texts = st.lists(st.integers(0, 3), max_size=60)


def draft(proposer: NgramProposer, tokens: Sequence[int], window: int, seq_id: int = 0) -> Draft:
    [answer] = proposer.draft([Ask(seq_id, tokens, window)])
    return answer


def searched(tokens: list[int], window: int, min_match: int, max_match: int) -> tuple[int, ...]:
    """What prompt lookup is defined to draft, by search."""
    for size in range(max_match, min_match - 1, -1):
        for end in range(len(tokens) - 1, size - 1, -1):
            if tokens[end - size : end] == tokens[len(tokens) - size :]:
                text = list(tokens)
                for i in range(window):
                    text.append(text[end + i])
                return tuple(text[len(tokens) :])
    return ()


class Metered(list[int]):
    """A text that counts how many of its tokens were read."""

    n_read = 0

    def __getitem__(self, key: Any) -> Any:
        n = len(range(*key.indices(len(self)))) if isinstance(key, slice) else 1
        self.n_read += n
        return super().__getitem__(key)


@given(
    tokens=texts,
    cuts=st.sets(st.integers(0, 60)),
    window=st.integers(0, 12),
    min_match=st.integers(1, 3),
    more=st.integers(0, 3),
)
def test_draft_is_what_a_search_finds_however_the_text_arrives(
    tokens: list[int], cuts: set[int], window: int, min_match: int, more: int
) -> None:
    proposer = NgramProposer(min_match, min_match + more)
    growing: list[int] = []
    for cut in sorted({min(cut, len(tokens)) for cut in cuts} | {len(tokens)}):
        growing.extend(tokens[len(growing) : cut])
        found = draft(proposer, growing, window)
        assert found.tokens == searched(growing, window, min_match, min_match + more)
        assert len(found.tokens) <= window
        assert len(found.confidence) == len(found.tokens)


def test_longest_match_wins_over_a_later_shorter_one() -> None:
    tokens = [1, 2, 3, 7, 9, 2, 3, 8, 1, 2, 3]
    assert draft(NgramProposer(2, 3), tokens, 1).tokens == (7,)
    assert draft(NgramProposer(2, 2), tokens, 1).tokens == (8,)


def test_periodic_text_is_continued_past_its_end() -> None:
    assert draft(NgramProposer(), [1, 2, 3, 1, 2, 3], 8).tokens == (1, 2, 3, 1, 2, 3, 1, 2)


def test_confidence_grows_with_the_match_and_along_the_draft() -> None:
    short = draft(NgramProposer(), [5, 1, 2, 6, 7, 1, 2], 3).confidence
    long = draft(NgramProposer(), [5, 1, 2, 6, 5, 1, 2], 3).confidence
    assert short == (2 / 5, 3 / 6, 4 / 7)
    assert long == (3 / 6, 4 / 7, 5 / 8)


@pytest.mark.parametrize("tokens", [[], [1], [1, 2], [1, 2, 3, 4, 5]])
def test_text_without_repetition_gives_no_draft(tokens: list[int]) -> None:
    assert draft(NgramProposer(), tokens, 8) == NO_DRAFT


def test_window_of_zero_gives_no_draft_and_misses_nothing() -> None:
    proposer, tokens = NgramProposer(), [1, 2, 3]
    assert draft(proposer, tokens, 0) == NO_DRAFT
    tokens.extend([4, 1, 2])
    assert draft(proposer, tokens, 2).tokens == (3, 4)


def test_forgetting_an_unknown_slot_is_harmless() -> None:
    NgramProposer().open(3, (), 0)


@given(tokens=texts, keep=st.integers(0, 20), discard=st.integers(1, 20), added=texts)
def test_shifted_text_drafts_as_if_it_had_always_been_so(
    tokens: list[int], keep: int, discard: int, added: list[int]
) -> None:
    proposer = NgramProposer()
    draft(proposer, tokens, 4)
    del tokens[keep : keep + discard]
    proposer.cut(0, keep, discard)
    tokens.extend(added)
    assert draft(proposer, tokens, 4).tokens == searched(tokens, 4, 2, 4)


def test_cost_of_a_call_does_not_grow_with_the_context() -> None:
    def n_read(n_tokens: int) -> int:
        tokens = Metered(i * i % 97 for i in range(n_tokens))
        proposer = NgramProposer()
        draft(proposer, tokens, 8)
        tokens.append(5)
        tokens.n_read = 0
        draft(proposer, tokens, 8)
        return tokens.n_read

    assert n_read(32_000) <= n_read(2_000) <= 40


@pytest.mark.parametrize(("min_match", "max_match"), [(0, 4), (3, 2)])
def test_match_sizes_that_make_no_sense_are_refused(min_match: int, max_match: int) -> None:
    with pytest.raises(BadRequest, match="min_match"):
        NgramProposer(min_match, max_match)
