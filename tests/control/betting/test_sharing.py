"""Several sequences in one pass, by prices at which a change of shape costs as much as a pass."""

from __future__ import annotations

from parlay.control.controller import View
from parlay.control.prices.cost import CostTable
from parlay.control.prices.curve import Curve
from parlay.control.profit import ProfitController
from parlay.decoding.draft import Draft, Shown

N = 4
PLAIN_S = 4.0e-3
CHANGE_S = 5.0e-3


def prices() -> CostTable:
    """A row of everybody costs a fifth of a pass; to leave a shape costs more than one."""
    steady = {N * each: PLAIN_S * (0.8 + 0.2 * each) for each in range(1, 18)}
    alone = Curve({1: 0.75 * PLAIN_S, 17: 3 * PLAIN_S}, {})
    return CostTable(
        {(256, 1): alone, (256, N): Curve(steady, {n: s + CHANGE_S for n, s in steady.items()})}
    )


def view(seq_id: int, n_generated: int, n_drafted: int, sure: float = 0.98, shown: int = 0) -> View:
    draft = Draft((0,) * n_drafted, "suffix", (sure,) * n_drafted)
    return View(
        seq_id=seq_id,
        n_context=300 + n_generated,
        n_prompt=300,
        n_generated=n_generated,
        max_window=16,
        proposers=("suffix",),
        offers={"suffix": draft},
        n_remaining=400 - n_generated,
        shown=(Shown("suffix", shown, False),) if shown else (),
    )


def windows(views: list[View]) -> list[int]:
    controller = ProfitController(prices())
    controller._shapes.observe(N)  # the last pass was a plain one
    controller._shapes.observe(N)
    return [choice.window for choice in controller.choose(views)]


def test_drafts_that_are_known_to_hold_are_bet_on_although_one_token_alone_would_not_pay() -> None:
    """The narrowest window's loss is not made up for by its one token, a wider one's is; and the
    shape that is left for good is not charged to one pass."""
    found = windows([view(i, 40, 16, shown=30) for i in range(N)])
    assert min(found) >= 4


def test_drafts_that_nothing_is_known_of_are_not() -> None:
    assert windows([view(i, 40, 16) for i in range(N)]) == [0] * N


def test_one_text_that_has_shown_nothing_keeps_its_neighbours_from_a_dear_bet() -> None:
    views = [view(0, 40, 16), *(view(i, 40, 16, shown=30) for i in range(1, N))]
    assert windows(views) == [0] * N


def test_drafts_that_may_be_wrong_bear_the_change_of_shape() -> None:
    assert windows([view(i, 40, 16, sure=0.6, shown=30) for i in range(N)]) == [0] * N
