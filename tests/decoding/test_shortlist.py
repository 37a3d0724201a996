"""The few tokens a draw is among are those that the whole row has, or none are named."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st
from numpy.typing import NDArray

from parlay.decoding import sampling as sampling_module
from parlay.decoding.masks import draw_permitted, permitted
from parlay.decoding.sampling import Sampling, draw, shortlist

N = 600
SAMPLINGS = {
    "greedy": Sampling(),
    "greedy, biased": Sampling(logit_bias={3: 4.0}),
    "temperature": Sampling(temperature=1.0),
    "top_p": Sampling(temperature=0.7, top_p=0.9),
    "all of top_p": Sampling(temperature=0.7, top_p=0.0),
    "top_k": Sampling(temperature=1.0, top_k=5),
    "top_k and top_p": Sampling(temperature=0.8, top_k=4, top_p=0.95),
    "min_p": Sampling(temperature=1.2, min_p=0.1),
    "all filters": Sampling(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05),
    "penalised": Sampling(temperature=0.9, top_p=0.8, repeat_penalty=1.4),
}


def row_of(seed: int, spread: float, n_equal: int) -> NDArray[np.float32]:
    """Some rows are flat, some have one likely token; the likeliest may be equal."""
    row = (np.random.default_rng(seed).standard_normal(N) * spread).astype(np.float32)
    row[np.argsort(row)[N - n_equal :]] = row.max()
    return row


def may_of(seed: int, share: float) -> NDArray[np.bool_]:
    may = np.random.default_rng(seed + 1).random(N) < share
    may[seed % N] = True
    return may


@pytest.mark.parametrize("name", SAMPLINGS)
@for_all(
    seed=st.integers(0, 1 << 20),
    spread=st.sampled_from([0.01, 0.5, 1.5, 4.0, 12.0]),
    n_equal=st.sampled_from([1, 1, 2, 6]),
    share=st.sampled_from([0.02, 0.5, 0.98]),
    position=st.integers(0, 99),
)
def test_what_few_questions_tell_is_what_the_masked_row_gives(
    name: str, seed: int, spread: float, n_equal: int, share: float, position: int
) -> None:
    row, may = row_of(seed, spread, n_equal), may_of(seed, share)
    masked = np.where(may, row, np.float32(-np.inf))
    given = (SAMPLINGS[name], [1, 2, 3], position)
    found = draw_permitted(row, *given, lambda token: bool(may[token]))
    assert found in (None, draw(masked, *given))


@pytest.mark.parametrize("name", SAMPLINGS)
@for_all(
    seed=st.integers(0, 1 << 20),
    spread=st.sampled_from([0.01, 0.5, 1.5, 4.0, 12.0]),
    n_equal=st.sampled_from([1, 1, 2, 6]),
)
def test_a_draw_is_the_same_with_a_shortlist_and_without(
    name: str, seed: int, spread: float, n_equal: int
) -> None:
    row = row_of(seed, spread, n_equal)
    with pytest.MonkeyPatch.context() as patch:
        found = draw(row, SAMPLINGS[name], [1, 2, 3], seed)
        patch.setattr(sampling_module, "shortlist", lambda *_: None)
        assert draw(row, SAMPLINGS[name], [1, 2, 3], seed) == found


def test_one_question_is_enough_where_one_token_has_nearly_all() -> None:
    row = np.zeros(N, np.float32)
    row[7] = 14
    asked: list[int] = []
    found = permitted(row, 0, 0.9, 0.0, _noting(asked, lambda _: True))
    assert found is not None and asked == [7]


@pytest.mark.parametrize(("may", "n"), [(False, 3), (True, 12)])
def test_no_more_questions_are_asked_than_a_mask_is_worth(may: bool, n: int) -> None:
    row = np.arange(N, dtype=np.float32) / 1000
    asked: list[int] = []
    assert permitted(row, 0, 0.9, 0.0, _noting(asked, lambda _: may)) is None
    assert asked == [*range(N - 1, N - 1 - n, -1)]


def test_a_cut_that_rounding_could_move_is_left_to_the_whole_row() -> None:
    row = np.log(np.array([0.5, 0.4, 0.1])).astype(np.float32)
    assert shortlist(row, 0, 0.5) is shortlist(row, 0, 0.9) is None
    assert np.array_equal(np.array(shortlist(row, 0, 0.8)), [0, 1])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_of_others_than_numbers_has_no_shortlist(bad: float) -> None:
    assert shortlist(np.full(4, bad, np.float32), 2, 0.9) is None


def _noting(asked: list[int], permits: Callable[[int], bool]) -> Callable[[int], bool]:
    def ask(token: int) -> bool:
        asked.append(token)
        return permits(token)

    return ask
