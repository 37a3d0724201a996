"""What a window would gain, by hand-made costs."""

from __future__ import annotations

import pytest

from parlay.pairing.prediction import Costs, break_even, speedup, survival

FREE = Costs({1: 1.0, 2: 1.0, 5: 1.0}, drafter={})


def test_survival_multiplies() -> None:
    assert survival([0.5, 0.5, 1.0]) == [0.5, 0.25, 0.25]
    assert survival([]) == []


def test_free_verification_gains_every_accepted_token() -> None:
    assert speedup(4, [1.0] * 4, FREE) == 5.0
    assert speedup(1, [0.5, 0.9], FREE) == 1.5
    assert break_even(4, FREE) == pytest.approx(0.0, abs=1e-9)


def test_costs_are_paid() -> None:
    costs = Costs({1: 2.0, 4: 4.0}, drafter={3: 3.0})
    assert costs.ratio == 0.5
    assert costs.round(3) == pytest.approx(3.5)
    assert speedup(3, [1.0, 1.0, 1.0], costs) == pytest.approx(4 / 3.5)
    assert costs.windows == [3]


def test_a_block_is_paid_whole_however_little_of_it_is_drafted() -> None:
    block = Costs({1: 1.0, 2: 1.1, 5: 1.4}, drafter={1: 0.4, 4: 0.4})
    assert block.ratio == pytest.approx(0.1)
    assert block.round(1) == pytest.approx(1.5)
    assert block.round(4) == pytest.approx(1.8)


def test_break_even_is_where_the_speedup_is_one() -> None:
    costs = Costs({1: 1.0, 4: 1.5}, drafter={3: 0.6})
    a = break_even(3, costs)
    assert a is not None
    assert speedup(3, [a, a**2, a**3], costs) == pytest.approx(1.0)


def test_nothing_pays_where_a_round_costs_more_than_it_can_give() -> None:
    assert break_even(1, Costs({1: 1.0, 2: 2.1}, drafter={})) is None


def test_positions_never_seen_count_as_rejected() -> None:
    assert speedup(4, [0.5], FREE) == 1.5
