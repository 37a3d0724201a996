"""What the controller may rely on and what it must not learn, one test for each rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from parlay.control.budget import BudgetController
from parlay.control.choice import Choice, Choices, Held, View
from parlay.control.prices.cost import CostTable
from parlay.control.prices.curve import Curve
from parlay.control.prices.cutting import Cutting
from parlay.control.prices.drafter_cost import DrafterCost
from parlay.decoding.draft import Draft
from parlay.decoding.round import Fallback, Round, Timing

SURE = (0.98,) * 8
OFFER = {"suffix": Draft((1,) * 8, "suffix", SURE)}


def table(row: float = 0.02, change: float = 0.0) -> CostTable:
    """A pass over one answer takes a second, over more a little longer; each further row a part."""
    curves = {}
    for n, plain in ((1, 1.0), (2, 1.2), (4, 1.6)):
        steady = {n: plain, n + 64: plain + 64 * row}
        curves[1, n] = Curve(steady, {b: s + change for b, s in steady.items()} if change else {})
    drafter = DrafterCost(Curve({1: 0.05, 64: 0.1}, {}), single_steps=False)
    return CostTable(curves, drafter, name="made")


def view(seq_id: int = 0, said: int = 1, **more: Any) -> View:
    told = {"offers": OFFER, "max_window": 16, "proposers": ("suffix",), **more}
    return View(seq_id, seq_id + 1, 100, n_generated=said, n_remaining=500, **told)


def told(
    choices: Choices, views: Sequence[View], n_right: int = 8, pass_s: float = 1.0, **more: Any
) -> list[Round]:
    """The rounds of a pass in which so many tokens of each draft held."""
    rounds = []
    for seen, choice in zip(views, choices.each, strict=True):
        k = choice.window
        right = min(k, n_right)
        rounds.append(
            Round(
                seq_id=seen.seq_id,
                answer=seen.answer,
                proposer=choice.proposer,
                window=k,
                n_drafted=k,
                n_accepted=right,
                n_generated=1 + right,
                confidence=SURE[:k],
                n_rows=1 + k,
                n_sequences=len(views),
                n_pass_rows=sum(1 + c.window for c in choices.each),
                n_context=seen.n_context,
                timing=Timing(0.0, pass_s),
                agreed={"suffix": min(n_right, 1 + right)} if seen.offers else {},
                **more,
            )
        )
    return rounds


def test_a_sure_draft_whose_rows_cost_little_is_verified_and_a_dear_one_is_not() -> None:
    (cheap,) = BudgetController(table(0.02)).choose([view()]).each
    (dear,) = BudgetController(table(1.2)).choose([view()]).each
    assert (cheap.proposer, cheap.window) == ("suffix", 8)
    assert (dear.window, dear.fallback) == (0, Fallback.UNPROFITABLE)
    assert cheap.expected_gain is not None and cheap.expected_gain > 2.0


def test_rows_go_to_those_whose_tokens_are_likeliest_whoever_they_are() -> None:
    unsure = {"suffix": Draft((1,) * 8, "suffix", (0.4,) * 8)}
    controller = BudgetController(table(0.1), cutting=Cutting(unified=True))
    sure, other = controller.choose([view(0), view(1, offers=unsure)]).each
    assert sure.window > other.window


def test_exact_passes_give_everybody_as_many_rows() -> None:
    controller = BudgetController(table(0.02))
    views = [view(i, equal=True, floor=3) for i in range(2)]
    choices = controller.choose(views)
    controller.observe(
        [replace(r, n_pass_rows=18, n_padding=0) for r in told(choices, views, pass_s=1.6)]
    )
    assert [choice.window for choice in choices.each] == [8, 8]


def test_a_draft_model_goes_on_for_those_whose_next_token_is_worth_its_time() -> None:
    controller = BudgetController(table(0.1), cutting=Cutting(unified=True))
    names: dict[str, Any] = {"proposers": ("model",), "models": ("model",), "offers": {}}
    choices = controller.choose([view(i, **names) for i in range(2)])
    assert all(choice.proposer == "model" for choice in choices.each)
    assert set(choices.going({0: [0.999], 1: [0.05]})) == {0}
    verified = choices.verified({0: [0.999, 0.999], 1: [0.05]})
    assert verified[0] == 2 and verified[1] == 0


def test_asking_changes_nothing() -> None:
    """A getter once destroyed what it was asked for."""
    asked, left_alone = BudgetController(table(0.3)), BudgetController(table(0.3))
    said = 1
    for i in range(60):
        for _ in range(3):
            asked.kept()
        views = [view(said=said)]
        made = [controller.choose(views) for controller in (asked, left_alone)]
        assert made[0].each == made[1].each
        made[0].going({0: [0.9]})
        made[0].verified({0: [0.9]})
        made[0].width(3)
        rounds = told(
            made[1], views, n_right=(i % 3) * 4, pass_s=1.0 + 0.3 * made[1].each[0].window
        )
        asked.observe(rounds)
        left_alone.observe(rounds)
        said += rounds[0].n_generated
    assert asked.kept() == left_alone.kept()


@pytest.mark.parametrize("floor", [1, 3])
def test_a_busy_moment_is_forgotten_in_every_class(floor: int) -> None:
    """In a class whose passes are padded a plain one has several rows: it never calmed down."""
    costs = table(0.02)
    curve = costs.curve(100, 1)
    for _ in range(40):  # wide passes while others had the cores
        costs.observe(9, 100, 1, False, 3.0, n_plain=floor)
        costs.observe(floor, 100, 1, False, 1.0, n_plain=floor)
    busy = curve.steady[9]
    controller = BudgetController(costs)
    for said in range(1, 1500):
        views = [view(said=said, offers={}, floor=floor)]
        rounds = told(controller.choose(views), views, pass_s=curve.steady[floor] * costs.pace)
        controller.observe([replace(r, n_pass_rows=floor, n_padding=floor - 1) for r in rounds])
    assert busy > 1.6 and curve.steady[9] < 1.35


@pytest.mark.parametrize(
    ("of_view", "of_round"), [({}, {"reads_prompt": True}), ({"shape_is_new": True}, {})]
)
def test_no_price_is_learned_from_a_pass_that_something_else_was_in_or_before(
    of_view: dict[str, Any], of_round: dict[str, Any]
) -> None:
    costs = table(0.02, change=0.5)
    before = costs.to_dict()
    controller = BudgetController(costs)
    for said in range(1, 20):
        views = [view(said=said, offers={}, **of_view)]
        controller.observe(told(controller.choose(views), views, pass_s=7.0, **of_round))
    assert costs.to_dict() == before


def test_a_window_that_a_request_asks_for_is_nobody_elses_loss() -> None:
    controller = BudgetController(table(0.1))
    for said in range(1, 40):  # wide and wrong, as it was asked for
        drafts = {"other": Draft((1,) * 8, "other", SURE)}
        views = [view(said=said, window=8, offers=drafts, proposers=("other",))]
        controller.observe(told(controller.choose(views), views, n_right=0, pass_s=1.8))
    assert controller.choose([view(said=40)]).each[0].window > 0


def test_a_neighbour_whose_request_asks_for_a_wider_window_does_not_stop_the_others() -> None:
    controller = BudgetController(table(0.02, change=0.3))
    short = {"suffix": Draft((1,) * 2, "suffix", SURE[:2])}
    wide = {"suffix": Draft((1,) * 60, "suffix", (0.98,) * 60)}
    held: list[Held | None] = [None, None]
    for said in range(1, 30, 3):  # none of it is observed: a device is slow
        views = [
            view(0, said, offers=short, max_window=2, held=held[0]),
            view(1, said, offers=wide, max_window=60, window=60, held=held[1]),
        ]
        choices = controller.choose(views).each
        assert choices[1].window == 60
        held = [Held(choice.window, 0, 1) for choice in choices]


def test_noise_is_nobodys_loss() -> None:
    """A plain pass that others made long does not keep the next sure draft from being made."""
    controller = BudgetController(table(0.05))
    for said in range(1, 30):
        views = [view(said=said, offers={})]
        controller.observe(
            told(controller.choose(views), views, pass_s=40.0 if said == 20 else 1.0)
        )
    assert controller.choose([view(said=30)]).each[0].window > 0


def test_passes_are_observed_in_any_order_of_their_answers_and_one_round_later() -> None:
    controller = BudgetController(table(0.02), cutting=Cutting(unified=True))
    first = [view(0), view(1)]
    chosen = controller.choose(first)
    second = [view(0, said=10), view(1, said=10)]
    controller.choose(second)
    controller.observe(told(chosen, first)[::-1])
    assert controller.kept()["rates"]["suffix"][1] != BudgetController(table()).kept()


def test_rounds_of_a_pass_that_nobody_chose_for_change_nothing() -> None:
    controller = BudgetController(table(0.02))
    before = controller.kept()
    made = told(Choices([Choice("suffix", 8)]), [view(3)], n_right=0, pass_s=9.0)
    controller.observe(made)
    assert controller.kept()["saved"] == before["saved"]


def test_what_a_draft_model_takes_is_learned_from_its_drafts() -> None:
    costs = table(0.02)
    assert costs.drafter is not None
    controller, said = BudgetController(costs), 1
    for _ in range(60):
        names: dict[str, Any] = {"proposers": ("model",), "models": ("model",), "offers": {}}
        views = [view(said=said, **names)]
        choices = controller.choose(views)
        slow_s = 3.0 * (0.05 * choices.each[0].window)
        rounds = told(choices, views, pass_s=1.0 + 0.02 * choices.each[0].window)
        controller.observe([replace(r, timing=Timing(slow_s, r.timing.verify_s)) for r in rounds])
        said += rounds[0].n_generated
    assert costs.drafter.pace > 2.0


def test_a_new_answer_in_a_slot_does_not_pay_for_the_last_one() -> None:
    controller, said = BudgetController(table(0.2), {"saved": 16.0}), 1
    for _ in range(5):
        views = [view(said=said)]
        choices = controller.choose(views)
        pass_s = 1.0 + 0.2 * choices.each[0].window
        controller.observe(told(choices, views, n_right=0, pass_s=pass_s))
        said += 1
    other = View(0, 99, 100, 1, 500, 16, ("suffix",), (), OFFER)
    assert controller.choose([other]).each[0].window > 0


def test_what_was_learned_is_kept_and_a_record_of_another_form_is_not_believed() -> None:
    controller = BudgetController(table(0.02))
    for said in range(1, 200, 9):
        views = [view(said=said)]
        controller.observe(told(controller.choose(views), views))
    again = BudgetController(table(0.02), controller.kept())
    assert again.kept()["rates"] == controller.kept()["rates"]
    odd = BudgetController(table(0.02), {"rates": {"suffix": [[0.5], [1.0]]}})
    assert odd.choose([view()]).each[0].window > 0
