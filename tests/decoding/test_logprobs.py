"""Log-probabilities are the model's own, whatever the samplers did."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_softmax

from parlay.decoding.logprobs import token_logprob
from parlay.decoding.sampling import Row

N_VOCAB = 20
ROWS = st.lists(st.floats(-30, 30, width=32), min_size=N_VOCAB, max_size=N_VOCAB).map(
    lambda values: np.array(values, np.float32)
)


@given(row=ROWS, token=st.integers(0, N_VOCAB - 1), n_top=st.integers(0, N_VOCAB + 5))
def test_figures_are_the_log_softmax_of_the_row(row: Row, token: int, n_top: int) -> None:
    expected = log_softmax(row.astype(np.float64))
    found = token_logprob(row, token, n_top)
    assert found.token == token
    assert found.logprob == pytest.approx(expected[token], abs=1e-9)
    assert len(found.top) == min(n_top, N_VOCAB)
    for best, logprob in found.top:
        assert logprob == pytest.approx(expected[best], abs=1e-9)
    figures = [logprob for _, logprob in found.top]
    assert figures == sorted(figures, reverse=True)
    assert figures == pytest.approx(sorted(expected, reverse=True)[:n_top], abs=1e-9)
    assert len({best for best, _ in found.top}) == len(found.top)


@given(row=ROWS)
def test_all_tokens_together_have_probability_one(row: Row) -> None:
    found = token_logprob(row, 0, N_VOCAB)
    assert sum(np.exp(logprob) for _, logprob in found.top) == pytest.approx(1)


def test_the_row_is_left_as_it_was() -> None:
    row = np.array([1, 2, 3], np.float32)
    token_logprob(row, 1, 2)
    assert row.tolist() == [1, 2, 3]


def test_large_logits_do_not_overflow() -> None:
    found = token_logprob(np.array([3e4, 0, -3e4], np.float32), 0, 3)
    assert found.logprob == 0
    assert dict(found.top)[2] == pytest.approx(-6e4)
