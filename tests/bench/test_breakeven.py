"""Break-even: the arithmetic of windows, and what it says in words."""

from __future__ import annotations

import pytest

from parlay.bench.breakeven import CostPoint, Costs, analyse, break_even, expected_tokens
from parlay.bench.comparison import Acceptance, Interval
from parlay.bench.window_passes import time_passes, warm_up
from parlay.reading.speculation import Speculation
from parlay.testing import ScriptedModel, hashed_logits

COSTS = Costs(target=[CostPoint(rows=b, seconds=0.01 * c) for b, c in [(1, 1), (2, 1.5), (5, 3)]])


def taken(by_position: list[float], length: float) -> Acceptance:
    return Acceptance(
        generated=100,
        counts=Speculation(drafted=10, accepted=5),
        token_acceptance=0.5,
        sequence_acceptance=None,
        draft_share=0.1,
        acceptance_length=length,
        by_position=by_position,
    )


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


def test_costs_between_points_are_on_a_line_and_steep_after_the_last() -> None:
    assert COSTS.target_s(1) == pytest.approx(0.01)
    assert COSTS.target_s(3) == pytest.approx(0.02)
    assert COSTS.target_s(10) == pytest.approx(0.06)


def test_a_window_that_loses_is_said_to_lose() -> None:
    found = analyse(COSTS, taken([0.4, 0.3], 1.2), None, cycle_s=0.018)
    assert found.cycle_cost == pytest.approx(1.8)
    assert found.expected == pytest.approx(1.2 / 1.8)
    assert "does not pay" in found.text
    assert "no window" in found.text


def test_a_window_that_wins_is_named() -> None:
    speedup = Interval(ratio=1.3, low=1.2, high=1.4, n_prompts=6, n_pairs=30, scope="tasks")
    found = analyse(COSTS, taken([0.9, 0.9], 2.5), speedup, cycle_s=0.018)
    assert "it pays" in found.text
    assert "window 3" in found.text
    assert "measured 1.30x" in found.text


def test_the_drafter_is_part_of_the_cost() -> None:
    free = analyse(COSTS, taken([0.9], 2.0), None, None).windows[0].cost
    dear = COSTS.model_copy(update={"drafter_s_per_token": 0.005})
    assert analyse(dear, taken([0.9], 2.0), None, None).windows[0].cost == pytest.approx(free + 0.5)


def test_passes_are_timed_shape_by_shape_and_leave_nothing_behind() -> None:
    model = ScriptedModel(hashed_logits(32), 32, context_size=64)
    now = [0.0]

    def clock() -> float:
        now[0] += 0.001
        return now[0]

    points = time_passes(model, (1, 2, 4, 400), n_times=3, budget_s=100, clock=clock)
    assert [p.rows for p in points] == [1, 2, 4]
    assert all(p.seconds > 0 for p in points)
    assert model.length(0) == 0
    assert model.shapes.count((2,)) == 4  # warmed once, timed three times


def test_warm_up_runs_each_shape_once() -> None:
    model = ScriptedModel(hashed_logits(32), 32, context_size=64)
    assert warm_up(model, range(1, 4)) == [1, 2, 3]
    assert model.shapes == [(16,), (1,), (2,), (3,)]
