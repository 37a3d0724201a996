"""The machine on paper charges what an engine pays, and plays any controller."""

from __future__ import annotations

import pytest

from parlay.control.budget import BudgetController
from parlay.control.choice import FixedWindow
from parlay.control.prices.cost import CostTable, shipped_tables
from parlay.control.prices.curve import Curve
from parlay.control.prices.cutting import Cutting
from tools.replay.__main__ import plain_s
from tools.replay.recording import RecordedOffer, Recording, mixed_workload
from tools.replay.texts import repeating
from tools.replay.world import SearchCost, World


def flat(rows_s: float = 0.1) -> CostTable:
    """A pass takes a second, and each further row a part of one."""
    return CostTable({(1, n): Curve({n: 1.0, 100: 1.0 + 100 * rows_s}, {}) for n in (1, 2, 4)})


def answer(n_right: int | None, n: int = 40) -> Recording:
    """Of four tokens that are drafted everywhere so many hold; None: nothing is drafted."""
    offer = RecordedOffer(0, ()) if n_right is None else RecordedOffer(n_right, (0.9,) * 4)
    return Recording("made", "made", 10, "length", {"suffix": (offer,) * n})


def test_plain_decoding_takes_a_pass_for_each_token() -> None:
    for costs in shipped_tables():
        for recording in mixed_workload()[:3]:
            made = World(costs, ("suffix",)).burst(FixedWindow(0), [recording])
            assert made.n_tokens == recording.n_tokens
            assert made.seconds == pytest.approx(plain_s(recording, costs))


def test_drafts_that_hold_make_several_tokens_a_pass_and_wrong_ones_cost_their_rows() -> None:
    held = World(flat(), ("suffix",)).burst(FixedWindow(4), [answer(4)])
    wrong = World(flat(), ("suffix",)).burst(FixedWindow(4), [answer(0)])
    assert held.n_tokens / held.seconds > 3.0
    assert wrong.n_tokens / wrong.seconds < 0.75


def test_answers_in_one_cache_share_a_ragged_pass_and_those_apart_are_padded() -> None:
    two = [answer(4), answer(None)]
    apart = World(flat(), ("suffix",)).burst(FixedWindow(4), two)
    together = World(flat(), ("suffix",), cutting=Cutting(unified=True))
    assert together.burst(FixedWindow(4), two).seconds < 0.95 * apart.seconds


def test_who_waits_gets_the_slot_of_whoever_ends() -> None:
    made = World(flat(), ("suffix",)).burst(FixedWindow(0), [answer(0, 10)] * 4, n_slots=2)
    assert made.n_tokens == 40
    assert made.seconds == pytest.approx(20.0, rel=0.1)


def test_searching_takes_time_only_where_somebody_is_searched_for() -> None:
    search = SearchCost(0.5)
    nobody = World(flat(), ("suffix",), search=search).burst(FixedWindow(0), [answer(0)])
    assert nobody.seconds == pytest.approx(40.5)  # before the first pass nobody has said so


def test_a_text_that_repeats_itself_is_several_times_as_fast() -> None:
    costs = next(table for table in shipped_tables() if table.name == "gpu-27b-q5_0")
    text = repeating(160, 12)
    made = World(costs, ("suffix",)).burst(BudgetController(costs.copy()), [text])
    assert plain_s(text, costs) / made.seconds > 2.5
