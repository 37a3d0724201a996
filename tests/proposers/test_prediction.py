"""Following a prediction: on the way, past changes, insertions, deletions, where it is wrong."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from time import thread_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlay.proposers.prediction import PredictionProposer
from parlay.proposers.proposer import Ask

TEXT = tuple(range(100, 160))


class Answer:
    """An answer that grows round by round, as the verification would let it."""

    def __init__(self, expected: Sequence[int], truth: Sequence[int], window: int = 8) -> None:
        self.expected, self.truth, self.window = tuple(expected), list(truth), window
        self.tokens: list[int] = [1, 2, 3]
        self.proposer = PredictionProposer()
        self.n_drafted = self.n_accepted = self.n_rounds = 0

    def draft(self) -> tuple[int, ...]:
        ask = Ask(0, self.tokens, self.window, n_prompt=3, expected=self.expected)
        found = self.proposer.draft([ask])[0]
        assert len(found.tokens) == len(found.confidence) <= self.window
        assert all(0 < c < 1 for c in found.confidence)
        return found.tokens

    def run(self) -> Answer:
        while len(self.tokens) - 3 < len(self.truth):
            rest = self.truth[len(self.tokens) - 3 :]
            draft = self.draft()
            n = 0
            while n < min(len(draft), len(rest)) and draft[n] == rest[n]:
                n += 1
            self.tokens += rest[: n + 1]
            self.n_rounds += 1
            self.n_drafted += len(draft)
            self.n_accepted += n
        return self


def test_an_answer_that_equals_its_prediction_is_drafted_whole() -> None:
    answer = Answer(TEXT, TEXT).run()
    assert answer.n_rounds == 7  # 60 tokens, nine a round
    assert answer.n_accepted >= 52


def test_after_a_changed_token_the_draft_goes_on_behind_it() -> None:
    truth = [*TEXT[:20], 7, *TEXT[21:]]
    answer = Answer(TEXT, truth)
    answer.tokens += truth[:21]
    assert answer.draft() == TEXT[21:29]


def test_after_an_insertion_the_draft_goes_on_where_it_was_left() -> None:
    truth = [*TEXT[:20], 7, 8, 9, *TEXT[20:]]
    answer = Answer(TEXT, truth)
    answer.tokens += truth[:24]
    assert answer.draft() == TEXT[21:29]


def test_after_a_deletion_the_draft_goes_on_behind_what_is_missing() -> None:
    truth = [*TEXT[:20], *TEXT[30:]]
    answer = Answer(TEXT, truth)
    answer.tokens += truth[:21]
    assert answer.draft() == TEXT[31:39]


def test_words_before_the_expected_text_do_not_lose_it() -> None:
    truth = [5, 6, 7, *TEXT]
    answer = Answer(TEXT, truth).run()
    assert answer.n_rounds <= 12


def test_a_rename_is_expected_where_it_comes_again() -> None:
    between = [tuple(range(200 + 4 * i, 204 + 4 * i)) for i in range(12)]
    expected = [t for some in between for t in (50, 51, *some)]
    truth = [t for some in between for t in (60, 61, 62, *some)]
    answer = Answer(expected, truth).run()
    alone = len(truth) / answer.n_rounds
    assert alone > 5  # without remembering it every rename would end a draft: at most 4


def test_a_change_back_to_an_earlier_place_is_found_by_several_tokens() -> None:
    truth = [*TEXT[:40], 7, *TEXT[5:30]]
    answer = Answer(TEXT, truth)
    answer.tokens += truth[:44]
    assert answer.draft() == TEXT[8:16]


@pytest.mark.parametrize("period", [1, 7, 50_000])
def test_a_prediction_of_100_000_tokens_that_is_wrong_is_bounded_in_time_and_memory(
    period: int,
) -> None:
    expected = tuple(i % period for i in range(100_000))
    truth = [(i * 7919) % 60_000 for i in range(400)]  # now and then a token of it
    began = thread_time()
    tracemalloc.start()
    answer = Answer(expected, truth, window=64).run()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(answer.tokens) == 403
    assert peak < 8e6  # a prediction in numbers, and a scan of it
    assert thread_time() - began < 10  # a millisecond a round, and room for slow machines


def test_a_long_answer_costs_no_more_a_round_than_a_short_one() -> None:
    proposer, read = PredictionProposer(), 0

    class Tokens(list[int]):
        def __getitem__(self, at: Any) -> Any:
            nonlocal read
            found = super().__getitem__(at)
            read += len(found) if isinstance(at, slice) else 1
            return found

    tokens = Tokens([1, 2, 3])
    for i in range(3000):
        tokens.append(i)
        proposer.draft([Ask(0, tokens, 8, n_prompt=3, expected=TEXT)])
    assert read < 4 * 3000


def test_without_a_prediction_nothing_is_drafted() -> None:
    assert PredictionProposer().draft([Ask(0, [1, 2], 4)])[0].tokens == ()


def test_a_new_answer_in_the_slot_starts_over() -> None:
    answer = Answer(TEXT, TEXT).run()
    answer.proposer.open(0, (), 0)
    answer.tokens = [1, 2, 3]
    assert answer.draft() == TEXT[:8]


def test_the_end_of_the_prediction_ends_the_drafts() -> None:
    answer = Answer(TEXT[:4], [*TEXT[:4], 9, 9, 9])
    answer.tokens += TEXT[:3]
    assert answer.draft() == TEXT[3:4]
    answer.tokens += [TEXT[3], 9]
    assert answer.draft() == ()


@given(
    st.lists(st.integers(0, 6), max_size=60),
    st.lists(st.integers(0, 6), max_size=60),
    st.integers(1, 12),
)
def test_any_prediction_of_any_answer_is_read_to_its_end(
    expected: list[int], truth: list[int], window: int
) -> None:
    answer = Answer(expected, truth, window).run()
    assert answer.tokens[3:][: len(truth)] == truth


@given(st.data())
def test_fed_in_pieces_of_any_size_the_place_is_the_same(data: st.DataObject) -> None:
    expected = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=40))
    truth = data.draw(st.lists(st.integers(0, 9), max_size=40))
    whole, pieces = Answer(expected, truth), Answer(expected, truth)
    whole.tokens += truth
    for token in truth:
        pieces.tokens.append(token)
        pieces.draft()
    assert whole.draft() == pieces.draft()
