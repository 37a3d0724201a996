"""When guessing pays: the break-even of a cost table, in numbers and in a sentence."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from parlay.control.prices.breakeven import RoundCosts
from parlay.server.figures.economics import ServedAcceptance, costs_of, economics
from parlay.server.lifecycle.service import Service
from tests.control.synthetic import table


def costs(*times: float, drafter: float | None = None) -> RoundCosts:
    drafts = {} if drafter is None else {1: drafter, 2: 2 * drafter}
    return RoundCosts(dict(enumerate(times, 1)), drafts)


def test_free_rows_pay_at_once_and_dear_rows_need_acceptance() -> None:
    found = economics(costs(0.010, 0.015), None, ["suffix"])
    assert found["windows"][0]["break_even"] == pytest.approx(0.5, abs=1e-3)
    assert "with suffix, speculation pays above 50 % acceptance" in found["headline"]
    assert economics(costs(0.010, 0.010), None, ["suffix"])["windows"][0]["break_even"] == 0


def test_a_drafter_s_time_counts() -> None:
    free = economics(costs(0.010, 0.012), None, ["model"])["windows"][0]
    dear = economics(costs(0.010, 0.012, drafter=0.002), None, ["model"])["windows"][0]
    assert dear["break_even"] > free["break_even"]


def test_where_nothing_can_pay_it_says_so() -> None:
    found = economics(costs(0.010, 0.021, 0.032), None, ["ngram", "suffix"])
    assert "with ngram and suffix, speculation cannot pay" in found["headline"]


@pytest.mark.parametrize(("share", "side"), [(0.8, "above"), (0.3, "below")])
def test_the_acceptance_of_late_is_put_on_one_side_of_the_line(share: float, side: str) -> None:
    found = economics(costs(0.010, 0.015), ServedAcceptance((share,), share), ["suffix"])
    assert f"{side} the line" in found["text"]
    assert found["windows"][0]["tokens"] == pytest.approx(1 + share)


def test_without_prices_nothing_is_claimed() -> None:
    found = economics(None, None, ["suffix"])
    assert found["rows"] == [] and found["headline"] == "Not measured yet."


def test_a_machine_that_runs_slower_is_shown_with_slower_drafts_too() -> None:
    shown = []
    for pace in (1.0, 2.0):
        prices = table(slope=0.1, drafter=0.2)
        prices.pace = pace
        bets, settings = SimpleNamespace(proposers={"model": None}), SimpleNamespace(widest=16)
        engine = SimpleNamespace(prices=prices, bets=bets, settings=settings)
        found = costs_of(cast(Service, SimpleNamespace(engine=engine)))
        assert found is not None
        shown.append((found.target_s(1), found.draft_s(1)))
    usual, slow = shown
    assert slow == pytest.approx([2 * seconds for seconds in usual])
