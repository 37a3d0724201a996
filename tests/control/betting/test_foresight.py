"""Drafting ahead is chosen where hidden drafting saves more than it costs, and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from parlay.control.account import Account
from parlay.control.betting.foresight import Foresight
from parlay.control.controller import View
from parlay.control.prices.both import Both
from parlay.control.prices.cost import CostTable
from parlay.control.prices.curve import Curve
from parlay.control.prices.drafter_cost import DrafterCost
from parlay.control.profit import ProfitController
from parlay.decoding.draft import NOTHING_READY, Ready
from parlay.decoding.round import Round, Timing

PASS_S = 0.012


def drafter(step_s: float = 0.0012, both: Both | None = None) -> DrafterCost:
    return DrafterCost(Curve({1: step_s}, {}), single_steps=True, both=both)


def foresight(
    rate: float, *, token_s: float = 0.0017, slowdown: float = 1.05, n_ready: int = 0
) -> Foresight:
    both = Both({2: slowdown}, {2: token_s})
    return Foresight(both, drafter(both=both), [[rate] * 16], n_ready)


def values(found: Foresight, windows: int = 8) -> Sequence[float]:
    return found.values(range(2, windows + 2), [PASS_S] * (windows + 3))


def test_it_pays_where_drafts_hold_and_the_drafter_is_dear() -> None:
    assert values(foresight(0.95))[7] > 0.002


@pytest.mark.parametrize(
    "found",
    [
        foresight(0.3),  # drafts hardly ever hold
        foresight(0.95, token_s=0.02),  # nothing is ready when the pass ends
        foresight(0.9, slowdown=1.6),  # the pass pays more than drafting takes
    ],
)
def test_it_does_not_pay_where_nothing_is_hidden(found: Foresight) -> None:
    assert max(values(found)) < 0


def test_a_cheap_drafter_has_little_to_hide() -> None:
    both = Both({2: 1.05}, {2: 0.0002})
    cheap = Foresight(both, drafter(0.0001, both), [[0.6] * 16], 0)
    assert max(values(cheap)) < 0


def test_what_is_ready_beyond_the_window_counts() -> None:
    few, many = foresight(0.9, token_s=0.008), foresight(0.9, token_s=0.008, n_ready=8)
    assert values(many)[1] > values(few)[1]


def test_all_sequences_have_to_hold() -> None:
    one = foresight(0.9)
    two = Foresight(one.both, one.drafter, [[0.9] * 16] * 2, 0)
    assert values(two)[7] < values(one)[7]


# -- the controller ---------------------------------------------------------------------------


def controller(both: Both | None) -> ProfitController:
    curve = Curve({1: 0.0087, 2: 0.012, 17: 0.0125}, {})
    made = ProfitController(CostTable({(1, 1): curve}, drafter(both=both)))
    made.account = Account({"model": 10.0})  # it has won before
    return made


def view(n_generated: int, ready: Ready = NOTHING_READY) -> View:
    return View(
        seq_id=0,
        n_context=100 + n_generated,
        n_prompt=100,
        n_generated=n_generated,
        max_window=16,
        proposers=("model",),
        offers={},
        ready=ready,
    )


def learn(
    made: ProfitController, accepted: int, n_rounds: int = 60, *, beside: bool = False
) -> int:
    """So many rounds of eight drafted tokens; returns how many tokens there are then."""
    n = 1
    for _ in range(n_rounds):
        made.choose([view(n)])
        made._requests[0].asked = "model"
        made._requests[0].has_read("model", 0, but=1)
        timing = Timing(draft_s=8 * 0.0012, verify_s=0.0124)
        kept = accepted, accepted + 1, (0.9,) * 8
        made.observe([Round(0, "model", 8, 8, *kept, 9, 1, 9, 100 + n, timing, beside=beside)])
        n += accepted + 1
    return n


def test_the_controller_drafts_ahead_where_drafts_hold() -> None:
    made = controller(Both({2: 1.05}, {2: 0.0017}))
    n = learn(made, accepted=8)
    (choice,) = made.choose([view(n)])
    assert choice.window and choice.ahead


def test_without_prices_of_both_at_once_it_does_not() -> None:
    made = controller(None)
    n = learn(made, accepted=8)
    (choice,) = made.choose([view(n)])
    assert choice.window and not choice.ahead


def test_what_is_ready_costs_nothing_so_windows_are_wider_and_worth_more() -> None:
    made = controller(Both({2: 1.05}, {2: 0.0017}))
    n = learn(made, accepted=5)
    market = made._market([made._follow(view(n), 1)], [view(n)], [])
    without = made._plan("model", market.requests, market)
    market.requests[0].view = view(n, Ready(12))
    ready = made._plan("model", market.requests, market)
    assert ready.window > without.window and ready.value > without.value
    assert ready.draft_s == max(0, ready.window - 12) * ready.step_s


def test_a_draft_that_began_in_the_middle_teaches_no_price_of_drafting() -> None:
    made = controller(Both({2: 1.05}, {2: 0.0017}))
    n = learn(made, accepted=8, beside=True)
    assert made.costs.drafter is not None
    pace = made.costs.drafter.pace
    made.choose([view(n, Ready(8))])
    made._requests[0].asked = "model"
    timing = Timing(draft_s=1e-5, verify_s=0.0124)
    made.observe(
        [
            Round(
                0, "model", 8, 8, 8, 9, (0.9,) * 8, 9, 1, 9, 100 + n, timing, n_ahead=8,
                n_drafted_ahead=9, drafted_ahead_s=9 * 0.0030, beside=True,
            )
        ]
    )  # fmt: skip
    assert made.costs.drafter.pace == pace
    assert made.costs.drafter.both is not None
    assert made.costs.drafter.both.token_s[9] > 0.0017  # but of a token beside a pass


def test_what_was_drafted_beside_a_prompt_teaches_no_price_of_drafting_beside_a_round() -> None:
    made = controller(Both({2: 1.05}, {2: 0.0017}))
    learn(made, accepted=8, beside=True)
    assert made.costs.drafter is not None and made.costs.drafter.both is not None
    both = made.costs.drafter.both
    before = [*both.token_s]
    made.choose([view(1, Ready(8))])  # another answer
    made._requests[0].asked = "model"
    timing = Timing(draft_s=1e-5, verify_s=0.0124)
    first = Round(0, "model", 8, 8, 8, 9, (0.9,) * 8, 9, 1, 9, 101, timing, n_ahead=8)
    made.observe([replace(first, n_drafted_ahead=9, drafted_ahead_s=9 * 0.0030, beside=True)])
    assert both.token_s == before


@pytest.mark.parametrize(("accepted", "ahead"), [(8, True), (0, False)])
def test_a_window_that_was_asked_for_is_drafted_ahead_only_where_that_pays(
    accepted: int, ahead: bool
) -> None:
    made = controller(Both({2: 1.05}, {2: 0.0017}))
    n = learn(made, accepted)
    (choice,) = made.choose([replace(view(n), window=8)])
    assert choice.window == 8 and choice.ahead is ahead


def test_of_several_draft_models_each_has_prices_of_its_own_beside_the_target() -> None:
    made = controller(Both({2: 1.05}, {2: 0.0017}))
    other = Both({2: 1.05}, {2: 0.0017})
    made.costs.drafters["model2"] = drafter(both=other)
    made.choose([view(1)])
    made._requests[0].asked = "model2"
    timing = Timing(draft_s=1e-3, verify_s=0.0200)
    first = Round(0, "model2", 8, 8, 8, 9, (0.9,) * 8, 9, 1, 9, 101, timing, beside=True)
    made.observe([first])
    made.choose([view(10, Ready(8, proposer="model2"))])
    made._requests[0].asked = "model2"
    made.observe([replace(first, n_context=110, n_drafted_ahead=9, drafted_ahead_s=9 * 0.0030)])
    assert other.token_s[9] > 0.0017 and other.slowdown[9] > 1.05
    assert made.costs.drafter is not None and made.costs.drafter.both is not None
    assert made.costs.drafter.both.token_s[9] == 0.0017
    assert made.costs.drafter.both.slowdown[9] == 1.05


def test_a_stretch_that_was_fast_does_not_make_the_next_drafts_worthless() -> None:
    """Where another proposer knew the text by heart, its speed was out of reach of the model: its
    tokens seemed to be worth less than their time, and rounds were plain until that was forgotten.
    """
    made = controller(None)
    n = learn(made, accepted=6)
    made._requests[0].has_read("model", 0, but=1)
    made._tokens, made._seconds = 10.0, 0.008  # of late
    (choice,) = made.choose([view(n)])
    assert choice.window


def test_a_draft_may_go_on_where_it_is_sure_but_no_more_is_made_ahead_than_is_of_use() -> None:
    made = controller(Both({2: 1.05}, {2: 0.0017}))
    n = learn(made, accepted=5)
    (choice,) = made.choose([view(n)])
    assert choice.ahead and choice.window == 16
    assert choice.next_window < 16


@pytest.mark.parametrize(("token_s", "more"), [(0.0045, False), (0.0009, True)])
def test_where_a_pass_leaves_time_for_it_more_is_made_ahead_than_would_be_waited_for(
    token_s: float, more: bool
) -> None:
    made = controller(Both({2: 1.05}, {2: token_s}))
    n = learn(made, accepted=5)
    market = made._market([made._follow(view(n), 1)], [view(n)], [])
    plan = made._plan("model", market.requests, market)
    assert plan.ahead and (plan.n_ahead > plan.window) is more


def test_reading_a_prompt_beside_the_target_is_booked_by_what_its_pass_took_longer() -> None:
    for both, lost_s in ((Both({2: 1.05}, {2: 0.0017}), 0.05 * 0.02), (None, 0.0)):
        made = controller(both)
        made.choose([view(1)])
        left_s = made.account.allowance(0, "model", 1, PASS_S, 0.0)
        made.choose([view(2, Ready(read_s=0.02))])
        spent_s = left_s - made.account.allowance(0, "model", 1, PASS_S, 0.0)
        assert spent_s == pytest.approx(lost_s)


def test_a_prompt_that_was_read_beside_the_target_is_not_paid_for_again() -> None:
    made = controller(Both({2: 1.05}, {2: 0.0017}))
    made.choose([replace(view(1), unread={"model": 1})])
    assert made._requests[0].n_missing("model") == 1
