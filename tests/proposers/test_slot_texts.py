"""Indexed texts stay with their slot between turns, and go when they are too many."""

from __future__ import annotations

from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlay.decoding.draft import NO_DRAFT
from parlay.proposers import slot_texts
from parlay.proposers.ngram import NgramProposer
from parlay.proposers.occurrences import Occurrences
from parlay.proposers.proposer import Ask
from parlay.proposers.slot_texts import SlotTexts
from parlay.proposers.suffix import SuffixProposer

texts = st.lists(st.integers(0, 2), max_size=60)


def test_next_turn_reads_only_what_is_new() -> None:
    kept = SlotTexts((2, 4))
    first = kept.of(0, [1, 2, 3, 4])
    kept.end(0)
    kept.begin(0, [1, 2, 3, 4, 5, 6], 4)
    with mock.patch.object(Occurrences, "feed") as feed:
        kept.of(0, [1, 2, 3, 4, 5, 6])
    feed.assert_called_once_with([5, 6])
    assert kept.of(0, [1, 2, 3, 4, 5, 6]) is first


@given(old=texts, shared=st.integers(0, 60), new=texts, n_kept=st.integers(0, 60))
def test_text_is_the_new_sequences_whatever_the_slot_held(
    old: list[int], shared: int, new: list[int], n_kept: int
) -> None:
    kept, tokens = SlotTexts((2, 4)), [*old[:shared], *new]
    kept.of(0, old)
    kept.end(0)
    kept.begin(0, tokens, n_kept)
    index = kept.of(0, tokens)
    assert index.text.tolist() == tokens
    fresh = Occurrences((2, 4))
    fresh.feed(tokens)
    assert index.match() == fresh.match()


@given(text=texts, draft=texts, n_held=st.integers(0, 60), rest=texts)
def test_text_is_what_was_said_whatever_was_expected(
    text: list[int], draft: list[int], n_held: int, rest: list[int]
) -> None:
    kept, tokens = SlotTexts((2, 4)), [*text, *draft[:n_held], *rest]
    kept.expect(0, text, draft)
    index = kept.of(0, tokens)
    fresh = Occurrences((2, 4))
    fresh.feed(tokens)
    assert (index.text.tolist(), index.match()) == (tokens, fresh.match())


def test_a_draft_that_held_is_not_read_again() -> None:
    kept = SlotTexts((2,))
    kept.expect(0, [1, 2, 3], [4, 5])
    with mock.patch.object(Occurrences, "feed") as feed:
        kept.of(0, [1, 2, 3, 4, 5, 6])
    feed.assert_called_once_with([6])


def test_a_draft_that_nobody_heard_the_end_of_is_not_the_next_text() -> None:
    kept = SlotTexts((2,))
    kept.expect(0, [1, 2, 3], [4, 5])
    kept.end(0)
    kept.begin(0, [1, 2, 3, 4, 7], 3)
    assert kept.of(0, [1, 2, 3, 4, 7]).text.tolist() == [1, 2, 3, 4, 7]


def test_what_the_cache_did_not_keep_is_not_kept_either() -> None:
    kept = SlotTexts((2,))
    first = kept.of(0, [1, 2, 3])
    kept.end(0)
    kept.begin(0, [1, 2, 3], 0)
    assert kept.of(0, [1, 2, 3]) is not first


def test_oldest_ended_texts_go_when_they_are_too_many() -> None:
    kept = SlotTexts((2,))
    made = [kept.of(slot, [1, 2, 3]) for slot in range(3)]
    with mock.patch.object(slot_texts, "MAX_KEPT", 6):
        for slot in (1, 0, 2):
            kept.end(slot)
    kept_now = [kept.of(slot, [1, 2, 3]) is made[slot] for slot in range(3)]
    assert kept_now == [True, False, True]


# -- the proposers that read them -----------------------------------------------------------------

READERS = [NgramProposer, SuffixProposer]


@pytest.mark.parametrize("make", READERS)
def test_batch_answers_in_order_and_keeps_sequences_apart(
    make: type[NgramProposer | SuffixProposer],
) -> None:
    asks = [Ask(4, [1, 2, 3, 1, 2], 1), Ask(2, [1, 2], 1), Ask(7, [1, 2, 9, 1, 2], 1)]
    proposer = make()
    for _ in range(2):
        assert [answer.tokens for answer in proposer.draft(asks)] == [(3,), (), (9,)]


@pytest.mark.parametrize("make", READERS)
@pytest.mark.parametrize("end", ["open", "close"])
def test_slot_that_starts_over_remembers_nothing(
    make: type[NgramProposer | SuffixProposer], end: str
) -> None:
    proposer = make()
    assert [d.tokens for d in proposer.draft([Ask(0, [1, 2, 3, 4, 1, 2], 1)])] == [(3,)]
    {"open": lambda: proposer.open(0, (), 0), "close": proposer.close}[end]()
    assert proposer.draft([Ask(0, [8, 9, 8, 9, 7, 8, 9, 1, 2], 2)]) == [NO_DRAFT]
