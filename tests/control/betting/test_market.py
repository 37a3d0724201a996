"""What the coming pass costs, and what one bet on it may lose."""

from __future__ import annotations

from dataclasses import fields

from parlay.control.betting.market import Market
from parlay.control.prices.undoing import Undoing


def test_the_largest_loss_is_two_passes_and_what_leaving_and_taking_back_cost() -> None:
    steady = [0.0, 1.0, 1.5, 2.0]
    market = Market([], 1, 1, 1, steady, steady, steady, 0.0, 1.0, 1.0)
    assert market.largest_s == 2.0  # a CPU's
    dear = [0.0, 1.0, 2.0, 2.5]
    undoing = Undoing(free=1, seconds=1.5)
    market = Market([], 1, 1, 1, steady, dear, dear, 0.25, 1.0, 1.0, undoing=undoing)
    assert market.largest_s == 2.0 + 2 * (0.5 + 0.25) + 1.5  # a change twice,
    market = Market([], 1, 1, 1, steady, [n + 3.0 for n in steady], dear, 2.0, 1.0, 1.0)
    assert market.largest_s == 2.0 + 1.0 + 5.0  # and another pass at most


def test_a_copy_has_all_that_its_market_has() -> None:
    given = {each.name: object() for each in fields(Market)}
    made = Market(**given).copy()  # type: ignore[arg-type]  # whatever they are
    assert {name: getattr(made, name) for name in given} == given
