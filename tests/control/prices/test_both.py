"""Prices of both models at once: kept, refined, and used for passes beside a drafter only."""

from __future__ import annotations

import pytest

from parlay.control.prices.both import Both
from parlay.control.prices.cost import CostTable
from parlay.control.prices.curve import Curve
from parlay.control.prices.drafter_cost import DrafterCost
from parlay.errors import BadRequest


def table(both: Both | None = None) -> CostTable:
    drafter = DrafterCost(Curve({1: 0.001}, {}), single_steps=True, both=both)
    return CostTable({(1, 1): Curve({1: 0.010, 9: 0.020}, {})}, drafter)


def test_what_was_measured_is_kept_and_lines_lie_between() -> None:
    both = Both({2: 1.02, 4: 1.06}, {2: 0.002, 4: 0.004})
    assert both.slowdown[3] == pytest.approx(1.04) and both.token_s[3] == pytest.approx(0.003)
    assert both.slowdown[64] == 1.06 and both.token_s[1] == 0.002
    again = table(both).copy()
    assert again.drafter is not None and again.drafter.both is not None
    assert again.drafter.both.to_dict() == both.to_dict()


def test_a_token_beside_a_pass_that_is_wider_than_prices_reach_teaches_none() -> None:
    both = Both({2: 1.02}, {2: 0.002})
    both.observe_token(513, 0.1)
    assert set(both.token_s) == {0.002}


def test_a_longer_pass_has_more_tokens_beside_it() -> None:
    both = Both({2: 1.1}, {2: 0.002})
    assert both.n_beside(4, 0.020) == pytest.approx(11.0)


def test_a_pass_beside_a_drafter_teaches_the_price_of_both_and_not_that_of_one() -> None:
    both = Both({2: 1.05}, {2: 0.002})
    costs = table(both)
    alone = costs.curve(1, 1).steady[5]
    for _ in range(100):
        costs.observe(5, 1, 1, False, 1.2 * costs.pace * alone, both)
    assert costs.curve(1, 1).steady[5] == alone
    assert both.slowdown[5] == pytest.approx(1.2, rel=0.02)
    assert both.slowdown[6] == 1.05


def test_a_token_beside_a_pass_is_learned_from_what_it_took() -> None:
    both = Both({2: 1.0}, {2: 0.002})
    for _ in range(100):
        both.observe_token(4, 0.003)
    assert both.token_s[4] == pytest.approx(0.003, rel=0.01)


@pytest.mark.parametrize(
    "record",
    [
        {"slowdown": {}, "ms": {}},
        {"slowdown": {"2": 1.0}, "ms": {"4": 1.0}},
        {"slowdown": {"2": 0}, "ms": {"2": 1.0}},
        {"slowdown": {"2": 1.0}},
    ],
)
def test_prices_that_make_no_sense_are_refused(record: dict[str, dict[str, float]]) -> None:
    written = table().to_dict()
    written["drafter"]["both"] = record
    with pytest.raises(BadRequest, match="not a cost table"):
        CostTable.from_dict(written)
