"""Suffix lookup, held against a search through the whole text."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlay.decoding.draft import NO_DRAFT, Draft
from parlay.errors import BadRequest
from parlay.proposers import index, lookup
from parlay.proposers.lookup import Lookup
from parlay.proposers.proposer import Ask


def repetitive(max_size: int) -> st.SearchStrategy[list[int]]:
    """Texts made of a few words: much repeats, in many contexts."""
    word = st.lists(st.integers(0, 3), min_size=1, max_size=4)
    words = st.lists(word, min_size=1, max_size=3)
    return words.flatmap(
        lambda some: st.lists(st.sampled_from(some), max_size=max_size).map(
            lambda text: [token for word in text for token in word][:max_size]
        )
    )


# Up to 16 earlier places are counted, so texts of this length are counted whole.
counted_texts = st.lists(st.integers(0, 2), max_size=17) | repetitive(17)
texts = st.lists(st.integers(0, 2), max_size=200) | repetitive(200)


def draft(proposer: Lookup, tokens: Sequence[int], window: int, seq_id: int = 0) -> Draft:
    [answer] = proposer.draft([Ask(seq_id, tokens, window)])
    return answer


def searched_match(tokens: list[int]) -> int:
    """Length of the longest suffix that occurred earlier."""
    n = len(tokens)
    sizes = range(n - 1, 0, -1)
    return next((m for m in sizes if followers(tokens, tokens[n - m :])), 0)


def followers(tokens: list[int], part: list[int]) -> list[int]:
    """Every token that came after an occurrence of `part`, in order."""
    m = len(part)
    return [tokens[end] for end in range(m, len(tokens)) if tokens[end - m : end] == part]


def searched(tokens: list[int], n_tokens: int) -> tuple[list[int], list[float]]:
    """The most frequent continuation, of equals the latest, token by token, with its confidence."""
    n, match = len(tokens), searched_match(tokens)
    text, confidence = list(tokens), []
    for length in range(match, match + n_tokens):
        seen = followers(text, text[n - match :])
        best = max(seen, key=lambda t: (seen.count(t), len(seen) - seen[::-1].index(t)))
        text.append(best)
        confidence.append(seen.count(best) / (len(seen) + 3 / length))
    return text[n:], confidence


def really_followed(tokens: list[int], match: int, drafted: tuple[int, ...]) -> bool:
    """Whether the draft is what came after one earlier occurrence of the matched suffix."""
    n, text = len(tokens), [*tokens, *drafted]
    ends = (end for end in range(match, n) if tokens[end - match : end] == tokens[n - match :])
    return any(text[end : end + len(drafted)] == text[n:] for end in ends)


_FILES = (lookup.__file__, index.__file__)


def n_lines(work: Callable[[], object]) -> int:
    """Lines of the proposer that ran: the cost of the work, without a clock."""
    n = 0

    def count(frame: FrameType, event: str, _arg: Any) -> Any:
        nonlocal n
        n += event == "line"
        # Other code may run in between: Hypothesis hooks into the garbage collector.
        return count if frame.f_code.co_filename in _FILES else None

    outer = sys.gettrace()
    sys.settrace(count)
    try:
        work()
    finally:
        sys.settrace(outer)
    return n


@given(
    tokens=counted_texts,
    cuts=st.sets(st.integers(0, 17)),
    window=st.integers(0, 12),
    min_match=st.integers(1, 3),
    factor=st.sampled_from([0.5, 1.0, 4.0]),
)
def test_draft_and_confidence_are_what_a_search_finds_however_the_text_arrives(
    tokens: list[int], cuts: set[int], window: int, min_match: int, factor: float
) -> None:
    proposer = Lookup(min_match, factor)
    growing: list[int] = []
    for cut in sorted({min(cut, len(tokens)) for cut in cuts} | {len(tokens)}):
        growing.extend(tokens[len(growing) : cut])
        found = draft(proposer, growing, window)
        match = searched_match(growing)
        n_tokens = min(window, max(1, int(factor * match))) if match >= min_match else 0
        drafted, confidence = searched(growing, n_tokens)
        assert list(found.tokens) == drafted
        assert list(found.confidence) == pytest.approx(confidence)


@given(tokens=texts, window=st.integers(1, 12))
def test_draft_really_followed_an_end_of_the_text(tokens: list[int], window: int) -> None:
    found = draft(Lookup(1, 100.0), tokens, window)
    match = min(searched_match(tokens), 4)  # of the last places only, so not always the longest
    assert len(found.tokens) == (window if match else 0)
    assert not match or really_followed(tokens, match, found.tokens)


def test_match_length_decides_how_far_to_draft() -> None:
    tokens = [1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 2, 3]
    assert draft(Lookup(), tokens, 8).tokens == (4, 5, 6)
    assert draft(Lookup(), tokens, 2).tokens == (4, 5)
    assert draft(Lookup(factor=1.5), tokens, 8).tokens == (4, 5, 6, 7)
    assert draft(Lookup(factor=0.1), tokens, 8).tokens == (4,)
    assert draft(Lookup(min_match=4), tokens, 8) == NO_DRAFT


def test_most_frequent_continuation_wins_and_of_equals_the_latest() -> None:
    assert draft(Lookup(1), [1, 5, 1, 5, 1, 6, 1], 1).tokens == (5,)
    assert draft(Lookup(1), [1, 5, 1, 6, 1], 1).tokens == (6,)


def test_periodic_text_is_continued_past_its_end() -> None:
    tokens = [1, 2, 3, 1, 2, 3]
    assert draft(Lookup(factor=9.0), tokens, 8).tokens == (1, 2, 3, 1, 2, 3, 1, 2)


def test_confidence_is_the_share_of_earlier_occurrences_that_went_on_so() -> None:
    found = draft(Lookup(1, 2.0), [1, 5, 8, 1, 5, 9, 1, 6, 0, 1], 2)
    assert found.tokens == (5, 9)
    assert found.confidence == pytest.approx((2 / (3 + 3 / 1), 1 / (2 + 3 / 2)))


def test_substring_that_first_occurs_on_its_own_keeps_the_counts_it_had_in_a_longer_one() -> None:
    found = draft(Lookup(1), [0, 1, 0, 1, 1], 1)
    assert found.tokens == (1,)
    assert found.confidence == pytest.approx((1 / (2 + 3 / 1),))


@given(tokens=texts)
def test_confidence_stays_a_probability_however_often_it_occurred(tokens: list[int]) -> None:
    found = draft(Lookup(1, 100.0), tokens, 12)
    assert all(0 < share <= 1 for share in found.confidence)


@pytest.mark.parametrize("tokens", [[], [1], [1, 2], [1, 2, 3, 4, 5]])
def test_text_without_repetition_gives_no_draft(tokens: list[int]) -> None:
    assert draft(Lookup(1), tokens, 8) == NO_DRAFT


def test_window_of_zero_gives_no_draft_and_misses_nothing() -> None:
    proposer, tokens = Lookup(), [1, 2, 3, 1, 2]
    assert draft(proposer, tokens, 0) == NO_DRAFT
    tokens.extend([4, 1, 2])
    assert draft(proposer, tokens, 2).tokens == (4, 1)


@given(old=texts, new=counted_texts, n_kept=st.integers(0, 17))
def test_next_turn_drafts_as_if_its_slot_were_new(
    old: list[int], new: list[int], n_kept: int
) -> None:
    proposer = Lookup()
    draft(proposer, old, 4)
    proposer.finish(0, old)
    turn = [*old[:n_kept], *new]
    proposer.open(0, turn, n_kept)
    assert draft(proposer, turn, 4) == draft(Lookup(), turn, 4)


@given(tokens=counted_texts, keep=st.integers(0, 9), discard=st.integers(1, 9))
def test_shifted_text_drafts_as_if_it_had_always_been_so(
    tokens: list[int], keep: int, discard: int
) -> None:
    proposer = Lookup()
    draft(proposer, tokens, 4)
    del tokens[keep : keep + discard]
    proposer.cut(0, keep, discard)
    assert draft(proposer, tokens, 4) == draft(Lookup(), tokens, 4)


def test_cost_of_a_call_does_not_grow_with_the_context() -> None:
    def cost(n_tokens: int) -> int:
        proposer, tokens = Lookup(), [i * i % 97 for i in range(n_tokens)]
        draft(proposer, tokens, 8)
        tokens.append(tokens[-97])
        return n_lines(lambda: draft(proposer, tokens, 8))

    assert cost(32_000) < 1.5 * cost(2_000)


# -- slots -----------------------------------------------------------------------------------------


def test_batch_answers_in_order_and_keeps_sequences_apart() -> None:
    asks = [Ask(4, [1, 2, 3, 1, 2], 1), Ask(2, [1, 2], 1), Ask(7, [1, 2, 9, 1, 2], 1)]
    proposer = Lookup()
    for _ in range(2):
        assert [answer.tokens for answer in proposer.draft(asks)] == [(3,), (), (9,)]


def test_a_next_turn_reads_only_what_is_new() -> None:
    proposer, text = Lookup(), list(range(3_000))
    proposer.meanwhile(Ask(0, text, 0), ())
    proposer.finish(0, text)
    turn = [*text, 7, 8]
    proposer.open(0, turn, len(text))
    with mock.patch.object(index.Index, "feed") as feed:
        proposer.meanwhile(Ask(0, turn, 0), ())
    feed.assert_called_once_with([7, 8])


def test_oldest_ended_texts_go_when_they_are_too_many() -> None:
    proposer = Lookup()
    for slot in range(3):
        proposer.meanwhile(Ask(slot, [1, 2, 3], 0), ())
    with mock.patch.object(lookup, "MAX_KEPT", 6):
        for slot in (1, 0, 2):
            proposer.finish(slot, [1, 2, 3])
    with mock.patch.object(index.Index, "feed") as feed:
        for slot in range(3):
            proposer.open(slot, [1, 2, 3], 3)
            proposer.meanwhile(Ask(slot, [1, 2, 3], 0), ())
    assert feed.call_count == 1  # the text of the slot that ended first is read again


# -- beside a pass ---------------------------------------------------------------------------------

TEXT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]


@given(texts, st.integers(1, 3), texts, st.integers(0, 8), st.integers(0, 2))
def test_whatever_comes_the_same_is_drafted_as_without_looking_beside_the_pass(
    base: list[int], n_times: int, rest: list[int], window: int, other: int
) -> None:
    text = base[:20] * n_times + rest[:20]
    guess = list(draft(Lookup(), text, 8).tokens)
    held = draft(Lookup(), [*text, *guess], 1).tokens
    for came in ([*guess, *held], [*guess, other], [*guess[:1], other], [other]):
        proposer, now = Lookup(), text + came
        proposer.meanwhile(Ask(0, list(text), 8), guess)
        assert draft(proposer, now, window) == draft(Lookup(), now, window)


def test_a_text_that_went_as_foreseen_is_not_searched() -> None:
    proposer = Lookup()
    proposer.meanwhile(Ask(0, list(TEXT), 8), [4, 5])
    with (
        mock.patch.object(index.Index, "match", None),
        mock.patch.object(index.Index, "feed", None),
    ):
        assert draft(proposer, [*TEXT, 4, 5, 6], 3).tokens == (7, 8, 9)


@pytest.mark.parametrize("came", [[4, 5, 1], [4, 6], [5], [4], [4, 5, 6, 7]])
def test_a_text_that_went_another_way_is_looked_into_anew(came: list[int]) -> None:
    proposer, now = Lookup(), [*TEXT, *came]
    proposer.meanwhile(Ask(0, list(TEXT), 8), [4, 5])
    assert draft(proposer, now, 3) == draft(Lookup(), now, 3)


@given(text=texts, guess=texts, n_held=st.integers(0, 60), rest=texts, other=texts)
def test_a_draft_that_nobody_heard_the_end_of_is_not_the_next_text(
    text: list[int], guess: list[int], n_held: int, rest: list[int], other: list[int]
) -> None:
    proposer = Lookup()
    proposer.meanwhile(Ask(0, text, 8), guess)
    said = [*text, *guess[:n_held], *rest]
    assert draft(proposer, said, 4) == draft(Lookup(), said, 4)
    proposer.meanwhile(Ask(0, said, 8), guess)
    proposer.finish(0, said)
    turn = [*said, *other]
    proposer.open(0, turn, len(said))
    assert draft(proposer, turn, 4) == draft(Lookup(), turn, 4)


# -- past texts ------------------------------------------------------------------------------------


def test_past_texts_are_not_remembered_unless_asked_for() -> None:
    proposer = Lookup()
    proposer.finish(0, [1, 2, 3, 4, 5])
    assert draft(proposer, [9, 1, 2, 3], 4) == NO_DRAFT


def test_past_text_is_drafted_from_up_to_its_end() -> None:
    proposer = Lookup(remember_tokens=100)
    proposer.finish(0, [1, 2, 3, 4, 5])
    assert draft(proposer, [9, 1, 2, 3], 4).tokens == (4, 5)
    assert draft(proposer, [9, 1, 2, 3, 4, 5], 4) == NO_DRAFT


def test_closing_forgets_the_past_texts() -> None:
    proposer = Lookup(remember_tokens=100)
    proposer.finish(0, [1, 2, 3])
    proposer.close()
    assert draft(proposer, [1, 2], 1) == NO_DRAFT


def test_draft_never_crosses_from_one_past_text_into_the_next() -> None:
    proposer = Lookup(remember_tokens=100)
    proposer.finish(0, [1, 2, 3])
    proposer.finish(0, [4, 5, 6])
    assert draft(proposer, [9, 1, 2], 8).tokens == (3,)


def test_longer_match_wins_and_of_equals_the_own_text() -> None:
    proposer = Lookup(remember_tokens=100)
    proposer.finish(0, [1, 2, 3, 7])
    assert draft(proposer, [2, 3, 8, 1, 2, 3], 1, seq_id=1).tokens == (7,)
    assert draft(proposer, [1, 2, 3, 8, 1, 2, 3], 1, seq_id=2).tokens == (8,)


def test_a_text_that_repeats_itself_is_drafted_beyond_the_end_of_a_past_one() -> None:
    proposer = Lookup(remember_tokens=100)
    proposer.finish(0, [9, *[1, 2] * 6])
    found = draft(proposer, [9, *[1, 2] * 5], 8, seq_id=1)
    assert found.tokens == (1, 2) * 4
    assert found.confidence[:2] == pytest.approx((11 / 14, 12 / 15))  # as of a match of 11
    assert found.confidence[2] == pytest.approx(10 / 13, abs=0.05)  # and then of 8 and two more
    assert draft(proposer, [9, *[1, 2] * 5, 3], 8, seq_id=1) == NO_DRAFT


def test_where_a_past_text_says_otherwise_it_is_believed_to_its_end() -> None:
    proposer = Lookup(remember_tokens=100)
    proposer.finish(0, [9, 1, 2, 3, 7])
    assert draft(proposer, [1, 2, 3, 8, 9, 1, 2, 3], 4, seq_id=1).tokens == (7,)


@pytest.mark.parametrize(("n_more", "wanted"), [(0, 8), (15, 8), (16, 8), (17, 7)])
def test_where_a_text_has_said_it_at_length_a_past_one_must_share_twice_as_much(
    n_more: int, wanted: int
) -> None:
    said, before = list(range(100, 116)), list(range(200, 200 + n_more))
    proposer = Lookup(remember_tokens=200)
    proposer.finish(0, [*before, *said, 7])
    assert draft(proposer, [*said, 8, *before, *said], 1, seq_id=1).tokens == (wanted,)


def test_oldest_past_texts_are_dropped_first() -> None:
    proposer = Lookup(remember_tokens=12)
    for base in (10, 20, 30):
        proposer.finish(0, range(base, base + 5))
    kept = [draft(proposer, [base, base + 1], 1, seq_id=base).tokens for base in (10, 20, 30)]
    assert kept == [(), (22,), (32,)]


def test_past_text_longer_than_the_bound_is_remembered_by_its_end() -> None:
    proposer = Lookup(remember_tokens=10)
    proposer.finish(0, range(100))
    assert draft(proposer, [96, 97], 1, seq_id=1).tokens == (98,)
    assert draft(proposer, [90, 91], 1, seq_id=2) == NO_DRAFT


@given(
    tokens=counted_texts,
    past=st.lists(st.tuples(st.integers(0, 17), counted_texts), max_size=6),
    bound=st.integers(1, 80),
)
def test_text_read_while_the_past_grows_drafts_as_if_read_afterwards(
    tokens: list[int], past: list[tuple[int, list[int]]], bound: int
) -> None:
    proposer = Lookup(1, 4.0, remember_tokens=bound)
    growing: list[int] = []
    for cut, text in sorted(past):
        growing.extend(tokens[len(growing) : cut])
        draft(proposer, growing, 4)
        proposer.finish(1, text)
        growing_now = draft(proposer, growing, 4)
        assert growing_now == draft(proposer, list(growing), 4, seq_id=2)
        proposer.open(2, (), 0)
    growing.extend(tokens[len(growing) :])
    assert draft(proposer, growing, 4) == draft(proposer, tokens, 4, seq_id=2)


@given(tokens=counted_texts, past=st.lists(counted_texts, max_size=4))
def test_draft_follows_the_longest_suffix_in_own_or_past_texts(
    tokens: list[int], past: list[list[int]]
) -> None:
    proposer = Lookup(1, 100.0, remember_tokens=1_000)
    for text in past:
        proposer.finish(1, text)
    found = draft(proposer, tokens, 4).tokens
    own = searched_match(tokens)
    suffixes = [tokens[start:] for start in range(len(tokens) - own)]  # longer than the own match
    known = next((s for s in suffixes if any(occurs(text, s) for text in past)), [])
    if any(followers(text, known) for text in past) and known:
        remembered = [n for n in range(1, 5) if any(occurs(t, [*known, *found[:n]]) for t in past)]
        assert found and remembered
        assert max(remembered) >= len(found) or really_followed(tokens, own, found)
    else:
        assert really_followed(tokens, own, found) if own else not found


def occurs(text: list[int], part: list[int]) -> bool:
    return any(text[i : i + len(part)] == part for i in range(len(text) - len(part) + 1))


def test_past_texts_cost_the_same_for_a_long_prompt_as_for_a_short_one() -> None:
    def cost(n_tokens: int, remember_tokens: int) -> int:
        proposer = Lookup(remember_tokens=remember_tokens)
        proposer.finish(1, [1, 2, 3])
        tokens = [*range(10, n_tokens), 1, 2]
        first = n_lines(lambda: draft(proposer, tokens, 1))
        proposer.finish(1, [4, 5, 6])
        return first + n_lines(lambda: draft(proposer, tokens, 1))

    assert cost(8_000, 100) - cost(8_000, 0) == cost(1_000, 100) - cost(1_000, 0)


@pytest.mark.parametrize(
    ("min_match", "factor", "remember_tokens"), [(0, 1.0, 0), (1, 0.0, 0), (1, 1.0, -1)]
)
def test_settings_that_make_no_sense_are_refused(
    min_match: int, factor: float, remember_tokens: int
) -> None:
    with pytest.raises(BadRequest, match="min_match"):
        Lookup(min_match, factor, remember_tokens)
