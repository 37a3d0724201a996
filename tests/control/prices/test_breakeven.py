"""Does a window pay, by hand-made costs."""

from __future__ import annotations

import pytest

from parlay.control.prices.breakeven import RoundCosts, break_even, expected_tokens, value

FREE = RoundCosts({1: 1.0, 2: 1.0, 5: 1.0})


def test_expected_tokens_is_one_plus_the_survivals() -> None:
    assert expected_tokens([0.5, 0.5], 2) == pytest.approx(1.75)
    assert expected_tokens([0.5], 3) == pytest.approx(1.875)  # the last one goes on


def test_break_even_solves_the_geometric_sum() -> None:
    found = break_even(1.5, 1)
    assert found == pytest.approx(0.5)
    assert break_even(1.0, 4) == 0.0
    assert break_even(5.5, 4) is None
    a = break_even(3.0, 4)
    assert a is not None
    assert sum(a**j for j in range(5)) == pytest.approx(3.0)


def test_costs_between_points_are_on_a_line_and_in_proportion_after_the_last() -> None:
    costs = RoundCosts({1: 0.01, 2: 0.015, 5: 0.03})
    assert costs.target_s(1) == pytest.approx(0.01)
    assert costs.target_s(3) == pytest.approx(0.02)
    assert costs.target_s(10) == pytest.approx(0.06)


def test_free_verification_gains_every_accepted_token() -> None:
    assert value(FREE, 4, [1.0]).speedup == 5.0
    assert value(FREE, 1, [0.5, 0.9]).speedup == 1.5
    assert value(FREE, 4).break_even == 0.0
    assert value(FREE, 4).tokens is None and value(FREE, 4).speedup is None


def test_costs_are_paid() -> None:
    costs = RoundCosts({1: 2.0, 4: 4.0}, {3: 3.0})
    assert costs.per_token == 0.5
    assert costs.round(3) == pytest.approx(3.5)
    assert value(costs, 3, [1.0]).speedup == pytest.approx(4 / 3.5)


def test_a_block_is_paid_whole_however_little_of_it_is_drafted() -> None:
    block = RoundCosts({1: 1.0, 2: 1.1, 5: 1.4}, {1: 0.4, 4: 0.4})
    assert block.per_token == pytest.approx(0.1)
    assert block.round(1) == pytest.approx(1.5)
    assert block.round(4) == pytest.approx(1.8)
    assert block.draft_s(8) == pytest.approx(0.4)


def test_drafts_beyond_the_longest_one_timed_cost_as_the_last_ones_grew() -> None:
    by_token = RoundCosts({1: 1.0}, {1: 0.1, 2: 0.2})
    assert by_token.draft_s(10) == pytest.approx(1.0)
    assert by_token.draft_s(0) == 0.0


def test_break_even_is_where_the_speedup_is_one() -> None:
    costs = RoundCosts({1: 1.0, 4: 1.5}, {3: 0.6})
    a = value(costs, 3).break_even
    assert a is not None
    assert value(costs, 3, [a]).speedup == pytest.approx(1.0)


def test_nothing_pays_where_a_round_costs_more_than_it_can_give() -> None:
    assert value(RoundCosts({1: 1.0, 2: 2.1}), 1).break_even is None
