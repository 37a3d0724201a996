"""Break-even: the arithmetic of windows, and what it says in words."""

from __future__ import annotations

import pytest

from parlay.bench.analysis import CostPoint, Costs, DraftPoint, analyse
from parlay.bench.comparison import Acceptance, Interval
from parlay.reading.speculation import Speculation

COSTS = Costs(target=[CostPoint(rows=b, seconds=0.01 * c) for b, c in [(1, 1), (2, 1.5), (5, 3)]])


def taken(by_position: list[float], length: float, drafted: int = 10) -> Acceptance:
    return Acceptance(
        generated=100,
        counts=Speculation(drafted=drafted, accepted=drafted // 2),
        token_acceptance=0.5,
        sequence_acceptance=None,
        draft_share=0.1,
        acceptance_length=length,
        by_position=by_position,
    )


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


@pytest.mark.parametrize("cycle_s", [0.008, 0.0128])
def test_where_nothing_was_drafted_nothing_is_said_to_pay_or_not(cycle_s: float) -> None:
    speedup = Interval(ratio=0.98, low=0.9, high=1.1, n_prompts=6, n_pairs=30, scope="tasks")
    found = analyse(COSTS, taken([], 1.0, drafted=0), speedup, cycle_s)
    assert found.text == "Nothing was drafted: every round was a plain step; measured 0.98x"


def test_a_draft_is_paid_whole_where_whole_drafts_were_timed() -> None:
    block = COSTS.model_copy(
        update={"drafts": [DraftPoint(tokens=n, seconds=0.004) for n in (1, 4)]}
    )
    found = analyse(block, taken([0.9], 2.0), None, None).windows
    bare = analyse(COSTS, taken([0.9], 2.0), None, None).windows
    assert [w.cost - b.cost for w, b in zip(found, bare, strict=True)] == pytest.approx([0.4] * 4)


def test_the_drafter_is_part_of_the_cost() -> None:
    free = analyse(COSTS, taken([0.9], 2.0), None, None).windows[0].cost
    dear = COSTS.model_copy(update={"drafter_s_per_token": 0.005})
    assert analyse(dear, taken([0.9], 2.0), None, None).windows[0].cost == pytest.approx(free + 0.5)
