"""A verdict says of each token where it came from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlay.decoding.verdict import Origin, Verdict

A, R, B, P = Origin.ACCEPTED, Origin.RECOVERED, Origin.BONUS, Origin.PLAIN


@pytest.mark.parametrize(
    ("tokens", "n_drafted", "n_accepted", "origins"),
    [
        ((7,), 0, 0, (P,)),
        ((7,), 3, 0, (R,)),
        ((7, 8), 3, 1, (A, R)),
        ((7, 8, 9, 1), 3, 3, (A, A, A, B)),
        ((7, 8), 2, 2, (A, A)),  # the last one ended the text
        ((), 0, 0, ()),
    ],
)
def test_origins_follow_from_what_was_drafted_and_accepted(
    tokens: tuple[int, ...], n_drafted: int, n_accepted: int, origins: tuple[Origin, ...]
) -> None:
    assert Verdict(tokens, n_drafted, n_accepted).origins == origins


@given(n_drafted=st.integers(0, 16), n_accepted=st.integers(0, 16), own=st.booleans())
def test_there_is_one_origin_per_token_and_at_most_one_is_the_targets_own(
    n_drafted: int, n_accepted: int, own: bool
) -> None:
    n_accepted = min(n_accepted, n_drafted)
    verdict = Verdict(tuple(range(n_accepted + own)), n_drafted, n_accepted)
    assert len(verdict.origins) == len(verdict.tokens)
    assert verdict.origins.count(A) == n_accepted


def test_origins_read_as_plain_words_in_json() -> None:
    assert [origin.value for origin in (A, R, B, P)] == ["accepted", "recovered", "bonus", "plain"]


@given(n_drafted=st.integers(0, 16), n_accepted=st.integers(0, 16), n=st.integers(1, 20))
def test_a_verdict_cut_by_a_stop_rule_counts_only_what_was_said(
    n_drafted: int, n_accepted: int, n: int
) -> None:
    n_accepted = min(n_accepted, n_drafted)
    verdict = Verdict(tuple(range(n_accepted + 1)), n_drafted, n_accepted)
    cut = verdict.first(n)
    assert cut.tokens == verdict.tokens[:n]
    assert cut.origins == verdict.origins[:n]
    assert cut == verdict if n > n_accepted else (cut.n_drafted, cut.n_accepted) == (n, n)
