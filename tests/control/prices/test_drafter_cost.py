"""What drafts cost, token by token and in blocks."""

from __future__ import annotations

import pytest

from parlay.control.prices.curve import Curve
from parlay.control.prices.drafter_cost import DrafterCost


def test_a_drafter_catches_up_as_the_draft_model_does() -> None:
    curve = Curve({1: 1.0, 2: 1.5, 400: 10.0}, {1: 2.0, 400: 12.0})
    steady = DrafterCost(curve, single_steps=True)
    assert steady.catch_up_s(2) == 2.0  # two passes of one token
    assert steady.catch_up_s(401) == pytest.approx(14.0)  # one wide pass, and back
    bulk = DrafterCost(curve, single_steps=False)
    assert bulk.catch_up_s(2) == 1.5  # one pass of two rows
    assert bulk.draft_s(3, n_missing=2) == pytest.approx(3.5)
    assert bulk.draft_s(0) == 0.0


def test_a_drafters_pace_follows_what_it_takes() -> None:
    drafter = DrafterCost(Curve({1: 1.0}, {}), single_steps=False)
    for _ in range(100):
        drafter.observe(drafter.draft_s(4), 8.0)
    assert drafter.draft_s(4) == pytest.approx(8.0, rel=0.05)


def test_a_block_costs_once_and_little_more_for_each_further_token() -> None:
    block = Curve({2: 0.010, 8: 0.016}, {})
    drafter = DrafterCost(Curve({1: 0.001, 64: 0.004}, {}), single_steps=False, block=block)
    assert drafter.step_s() == pytest.approx(0.001)
    assert drafter.catch_up_s(1) == pytest.approx(0.011)
    # Of a long text only the end is still to be read.
    assert drafter.catch_up_s(500) == pytest.approx(0.014)
    assert drafter.draft_s(7, 1) == pytest.approx(0.017)


def test_a_whole_block_costs_what_it_was_measured_to_cost() -> None:
    """The first rows of one may be dearer than its last."""
    block = Curve({2: 0.010, 9: 0.016, 16: 0.017}, {})
    reading = Curve({1: 0.001, 64: 0.004}, {})
    drafter = DrafterCost(reading, single_steps=False, block=block, longest=15)
    assert drafter.draft_s(15) == pytest.approx(0.018)
