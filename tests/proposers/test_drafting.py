"""A drafted token is chosen and rated by one rule, in few calls of Python."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from parlay.errors import DecodeError, NothingFollows
from parlay.proposers.drafting import Drafting, DraftLimits
from parlay.proposers.proposer import Ask

N_VOCAB = 12
# So few values that most rows have several largest ones.
LOGITS = st.sampled_from([-math.inf, -3.0, -0.0, 0.0, 1.5, 1.5000001, 80.0])
ROWS = st.lists(LOGITS, min_size=N_VOCAB, max_size=N_VOCAB + 4)


def drafting(*, rated: bool = True) -> Drafting:
    return Drafting(Ask(0, [1, 2], 4), DraftLimits(frozenset({3}), N_VOCAB, 8), rated)


def by_the_rule(row: NDArray[np.float32]) -> tuple[int, float]:
    """The first of the largest that the target knows, and its lead over all others."""
    token = int(np.flatnonzero(row[:N_VOCAB] == row[:N_VOCAB].max())[0])
    others = np.delete(row, token)
    return token, 1.0 / (1.0 + math.exp(-max(float(row[token]) - float(others.max()), -50.0)))


@given(ROWS)
def test_the_first_of_the_largest_logits_is_drafted_and_rated_by_its_lead(row: list[float]) -> None:
    found, logits = drafting(), np.array(row, np.float32)
    given_row = logits.copy()
    if given_row[:N_VOCAB].max() == -math.inf:
        with pytest.raises(NothingFollows):
            found.add(logits)
        return
    token, sure = by_the_rule(given_row)
    assert found.add(logits) == (token != 3)
    assert (found.tokens, found.confidence) == ([token], [sure])
    assert logits.tobytes() == given_row.tobytes()  # whoever looks at the row next finds it whole


@given(ROWS, st.integers(0, N_VOCAB - 1))
def test_a_row_with_what_is_no_number_is_an_error(row: list[float], at: int) -> None:
    logits = np.array(row, np.float32)
    logits[at] = np.nan
    with pytest.raises(DecodeError, match="no numbers"):
        drafting().add(logits)


def test_nobody_rates_tokens_where_nobody_asks_how_sure_they_are() -> None:
    found = drafting(rated=False)
    found.add(np.arange(N_VOCAB, dtype=np.float32))
    assert (found.tokens, found.confidence) == ([N_VOCAB - 1], [])
