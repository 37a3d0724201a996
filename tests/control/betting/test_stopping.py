"""A draft goes on while any number of further tokens is expected to pay, and no longer."""

from __future__ import annotations

from collections.abc import Sequence

from parlay.control.betting.stopping import Stopping
from parlay.control.survival import Acceptance

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
