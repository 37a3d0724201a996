"""Counts: each figure by a hand-computed example, and what holds for any rounds."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlay.decoding.counts import Counts
from parlay.decoding.round import Fallback, Round, Timing


def a_round(
    n_drafted: int,
    n_accepted: int,
    *,
    ended: bool = False,
    proposer: str = "suffix",
    fallback: Fallback | None = None,
    timing: Timing = Timing(1e-3, 2e-3, 5e-4),  # noqa: B008 - frozen
) -> Round:
    return Round(
        seq_id=0,
        proposer=proposer if n_drafted else "none",
        window=n_drafted,
        n_drafted=n_drafted,
        n_accepted=n_accepted,
        n_generated=n_accepted + (not ended),
        confidence=(0.5,) * n_drafted,
        n_rows=n_drafted + 1,
        n_sequences=1,
        n_pass_rows=n_drafted + 1,
        n_context=100,
        timing=timing,
        fallback=fallback,
    )


def counts_of(*rounds: Round) -> Counts:
    counts = Counts()
    for r in rounds:
        counts.observe(r)
    return counts


# Drafts of 4, 4, 2 and none: 4 accepted, then 1, then 0. 4+1 and 1+1, 0+1 and 1 tokens come of it.
EXAMPLE = counts_of(
    a_round(4, 4),
    a_round(4, 1),
    a_round(2, 0, proposer="model"),
    a_round(0, 0, fallback=Fallback.NO_DRAFT),
)


def test_token_acceptance_is_accepted_over_drafted() -> None:
    assert (EXAMPLE.n_accepted, EXAMPLE.n_drafted) == (5, 10)
    assert EXAMPLE.token_acceptance == 0.5


def test_sequence_acceptance_is_whole_drafts_over_rounds_that_drafted() -> None:
    assert EXAMPLE.n_speculated_rounds == 3
    assert EXAMPLE.sequence_acceptance == pytest.approx(1 / 3)


def test_draft_share_is_accepted_over_generated() -> None:
    assert EXAMPLE.n_generated == 9
    assert EXAMPLE.draft_share == pytest.approx(5 / 9)


def test_acceptance_length_is_generated_over_all_rounds_plain_ones_included() -> None:
    assert EXAMPLE.acceptance_length == pytest.approx(9 / 4)


def test_acceptance_by_position_divides_by_the_rounds_that_reached_the_position() -> None:
    # Position 1 was tried three times and held twice; position 2 was tried by the rounds that
    # held position 1 and drafted further (two), one of which held; 3 and 4 by the first alone.
    assert EXAMPLE.acceptance_by_position == [pytest.approx(2 / 3), 0.5, 1.0, 1.0]


def test_a_short_draft_does_not_count_against_positions_it_never_had() -> None:
    assert counts_of(a_round(1, 1), a_round(3, 3)).acceptance_by_position == [1.0, 1.0, 1.0]


def test_the_histogram_windows_proposers_and_fallbacks_are_kept_apart() -> None:
    assert EXAMPLE.histogram == {4: 1, 1: 1, 0: 1}
    assert EXAMPLE.windows == {4: 2, 2: 1, 0: 1}
    assert EXAMPLE.proposers == {"suffix": 2, "model": 1}
    assert EXAMPLE.fallbacks == {Fallback.NO_DRAFT: 1}


def test_times_add_up() -> None:
    assert EXAMPLE.draft_s == pytest.approx(4e-3)
    assert EXAMPLE.verify_s == pytest.approx(8e-3)
    assert EXAMPLE.overhead_s == pytest.approx(2e-3)


def test_no_rounds_give_zeros_and_not_errors() -> None:
    nothing = Counts()
    assert nothing.token_acceptance == nothing.sequence_acceptance == 0.0
    assert nothing.draft_share == nothing.acceptance_length == 0.0
    assert nothing.acceptance_by_position == []


def test_plain_decoding_has_length_one_and_no_share() -> None:
    plain = counts_of(*[a_round(0, 0)] * 5)
    assert (plain.acceptance_length, plain.draft_share, plain.n_speculated_rounds) == (1.0, 0.0, 0)


def test_the_public_form_is_json_with_the_words_of_the_glossary() -> None:
    public = json.loads(json.dumps(EXAMPLE.as_dict()))
    expected = {
        "generated": 9,
        "rounds": 4,
        "drafted": 10,
        "accepted": 5,
        "token_acceptance": 0.5,
        "sequence_acceptance": 0.3333,
        "draft_share": 0.5556,
        "acceptance_length": 2.25,
        "accepted_histogram": {"0": 1, "1": 1, "4": 1},
        "acceptance_by_position": [0.6667, 0.5, 1.0, 1.0],
        "windows": {"0": 1, "2": 1, "4": 2},
        "proposers": {"suffix": 2, "model": 1},
        "fallbacks": {"no_draft": 1},
        "draft_ms": 4.0,
        "verify_ms": 8.0,
        "overhead_ms": 2.0,
    }
    assert public | expected == public  # more may be added, nothing may change


@given(
    st.lists(
        st.tuples(st.integers(0, 8), st.integers(0, 8), st.booleans()).map(
            lambda t: a_round(t[0], min(t[0], t[1]), ended=t[2] and t[0] > 0 and t[1] >= t[0])
        ),
        max_size=30,
    )
)
def test_the_figures_agree_with_each_other_whatever_the_rounds(rounds: list[Round]) -> None:
    counts = counts_of(*rounds)
    assert sum(n * c for n, c in counts.histogram.items()) == counts.n_accepted
    assert sum(counts.histogram.values()) == counts.n_speculated_rounds
    assert sum(k * c for k, c in counts.windows.items()) == counts.n_drafted
    assert sum(counts.windows.values()) == counts.n_rounds
    assert sum(counts.accepted_at.values()) == counts.n_accepted
    for rate in (counts.token_acceptance, counts.sequence_acceptance, counts.draft_share):
        assert 0 <= rate <= 1
    # Survival is the product of what was accepted given all before it.
    tried = [counts.drafted_at[j] for j in range(1, 9)]
    assert tried == sorted(tried, reverse=True)
