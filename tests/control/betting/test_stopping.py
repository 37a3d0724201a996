"""A draft goes on while any number of further tokens is expected to pay, and no longer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlay.control.betting.stopping import Stopping
from parlay.control.survival import CELL_OF, STEPS, Acceptance

ODDS = Acceptance().by_confidence.odds
STEP_S, WORTH_S = 0.001, 0.0015


def stopping(
    prices: Sequence[float], rate: float = 0.97, ahead: Sequence[tuple[float, float]] = ()
) -> Stopping:
    rates = [rate] * 16
    return Stopping(ODDS, 0.2, rates, prices, WORTH_S, STEP_S, 16, ahead=ahead)


def stepped(dear: range) -> list[float]:
    """Passes that take 10 ms, but for those rows at which the kernels are slower."""
    return [0.013 if rows in dear else 0.010 for rows in range(18)]


def test_a_dear_stretch_of_rows_is_crossed_where_those_beyond_it_pay() -> None:
    """From 8 to 16 rows no window pays; with 17 they do, nine tokens away."""
    sure = (0.999,) * 7
    assert stopping(stepped(range(9, 17))).keep_going(sure)
    assert not stopping(stepped(range(9, 18))).keep_going(sure)


def test_what_was_drafted_on_the_way_across_is_not_verified() -> None:
    draft = stopping(stepped(range(9, 17)))
    assert draft.verify((0.999,) * 9) == 7
    assert draft.verify((0.999,) * 16) == 16


def test_tokens_that_are_hidden_beside_the_pass_are_not_waited_for() -> None:
    """Drafting ahead, a draft that is likely to hold is verified sooner: what it would go on with
    is made meanwhile. An unsure one has little to hide, and goes on as ever."""
    flat = [0.010] * 18
    hidden = [(0.008 - 0.0008 * n, 0.0005) for n in range(1, 17)]  # less by each that is waited for
    assert stopping(flat).keep_going((0.99,) * 4)
    assert not stopping(flat, ahead=hidden).keep_going((0.99,) * 4)


CONFIDENCES = st.lists(st.sampled_from([0.5, 0.7, 0.9, 0.97, 0.999]), min_size=1, max_size=16)


@given(CONFIDENCES, st.floats(0.0, 0.02))
def test_a_hit_is_valued_by_what_the_drafter_says_next(
    confidences: list[float], won_s: float
) -> None:
    """Of all parts of a draft the one that is worth most is verified; for all but the whole of it
    the next token is known."""
    prices = [0.010 + 0.001 * rows for rows in range(18)]
    each = [1.0 / (1.0 + ODDS[CELL_OF[int(sure * STEPS)]] * 0.2) for sure in confidences]
    held = list(accumulate(each, mul))
    hits = [*held[1:], held[-1] * 0.97]
    gained = accumulate(held)
    values = [
        WORTH_S * gain - prices[n + 1] - 0.0005 + hit * won_s
        for n, (gain, hit) in enumerate(zip(gained, hits, strict=True), 1)
    ]
    found = stopping(prices, ahead=[(won_s, 0.0005)] * 16).verify(confidences)
    best = max([*values, -prices[1]])
    assert ([-prices[1], *values])[found] == pytest.approx(best)
