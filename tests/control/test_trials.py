"""Prices learned from rounds: what they tell, what they cost, and who is left alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from parlay.control.prices.cost import CostTable
from parlay.control.trials import Trials
from parlay.decoding.round import Fallback
from tests.control.synthetic import draft, finished, view

LONG = {"ngram": draft("ngram", *[0.5] * 16)}


def stepped(rows: int) -> float:
    """A machine whose kernels switch at five rows."""
    return 0.01 + 0.004 * (rows - 1) + (0.01 if rows >= 5 else 0.0)


class Machine:
    """Makes the rounds that trials ask for, and plain ones."""

    def __init__(self, seconds: Callable[[int], float] = stepped, change_s: float = 0.0) -> None:
        self.trials = Trials(changes_cost=change_s > 0)
        self.windows: list[int] = []
        self.spent_s = self.plain_s = 0.0
        self._seconds = seconds
        self._change_s = change_s
        self._last = 1

    def run(
        self,
        n_rounds: int,
        accepted: float = 0.0,
        pace: Callable[[int], float] = lambda _i: 1.0,
    ) -> None:
        for i in range(n_rounds):
            trial = self.trials.next([view(LONG, n_generated=i + 1)])
            window = trial.window if trial else 0
            rows = window + 1
            seconds = self._seconds(rows) + (self._change_s if rows != self._last else 0.0)
            self._last = rows
            right = int(accepted * window)
            self.spent_s += seconds
            self.plain_s += self._seconds(1) * (right + 1)
            self.windows += [window] * bool(window)
            proposer = "ngram" if window else "none"
            self.trials.observe([finished(proposer, window, right, pace(i) * seconds)])

    @property
    def prices(self) -> CostTable:
        return self.trials.table()


def test_every_price_is_learned_from_rounds_alone() -> None:
    machine = Machine()
    machine.run(12_000)
    curve = machine.prices.curve(50, 1)
    for rows in (1, 2, 3, 4, 5, 7, 9, 13, 17):
        assert curve.steady[rows] == pytest.approx(stepped(rows))
    n_tried = len(machine.windows)
    machine.run(2_000)
    assert len(machine.windows) == n_tried  # what is known is not tried again


def test_narrow_windows_come_first_and_soon() -> None:
    machine = Machine()
    machine.run(600)
    assert {1, 2} <= {rows - 1 for rows in machine.prices.curve(50, 1).known}
    assert machine.windows == sorted(machine.windows)


@pytest.mark.parametrize("slope", [0.1, 0.6, 1.0])
def test_no_more_than_a_fiftieth_of_the_time_is_lost_whatever_is_rejected(slope: float) -> None:
    machine = Machine(lambda rows: 0.01 * (1 + slope * (rows - 1)))
    for _ in range(200):
        machine.run(20)
        assert machine.spent_s - machine.plain_s <= 0.02 * machine.spent_s + 1e-9
    assert machine.windows


def test_trials_that_win_pay_for_the_next_ones() -> None:
    unlucky, lucky = Machine(), Machine()
    unlucky.run(1000)
    lucky.run(1000, accepted=1.0)
    assert len(lucky.windows) > len(unlucky.windows)


def test_beyond_what_was_seen_every_row_costs_a_pass() -> None:
    machine = Machine()
    for n_rounds, widest in ((40, 1), (310, 3)):
        machine.run(n_rounds)
        curve = machine.prices.curve(50, 1)
        assert curve.steady[widest] == pytest.approx(stepped(widest))
        more = curve.steady[widest + 1] - curve.steady[widest]
        assert more == pytest.approx(stepped(1))


def test_a_machine_that_slows_down_meanwhile_changes_no_ratio() -> None:
    machine = Machine()
    machine.run(12_000, pace=lambda i: 1.0 + i / 4_000)
    curve = machine.prices.curve(50, 1)
    assert curve.steady[4] / curve.steady[1] == pytest.approx(stepped(4) / stepped(1), rel=0.02)


def test_where_a_change_of_shape_costs_both_ways_are_priced() -> None:
    machine = Machine(change_s=0.005)
    machine.run(12_000)
    curve = machine.prices.curve(50, 1)
    assert curve.prices_change
    assert curve.changed[4] == pytest.approx(stepped(4) + 0.005)
    assert curve.changed[1] == pytest.approx(stepped(1) + 0.005)
    assert curve.steady[1] == pytest.approx(stepped(1))


def test_a_pass_that_read_a_prompt_tells_no_price() -> None:
    trials = Trials(changes_cost=False)
    for _ in range(100):
        trials.observe([finished(seconds=5.0, n_pass_rows=65)])
    assert trials.next([view(LONG)]) is None


def ready() -> Trials:
    """Knows plain passes, and has time to spare."""
    trials = Trials(changes_cost=False)
    for _ in range(1000):
        trials.observe([finished(seconds=0.01)])
    return trials


def test_requests_that_decide_for_themselves_are_left_alone() -> None:
    alone = [view(LONG, window=3), view(LONG, fallback=Fallback.POLICY), view(LONG, max_window=0)]
    for found in alone:
        assert ready().next([found]) is None
    trial = ready().next([view(LONG)])
    assert trial is not None and (trial.proposer, trial.window) == ("ngram", 1)


def test_a_draft_model_is_tried_only_where_nobody_drafts_for_nothing() -> None:
    silent = {"ngram": draft("ngram")}
    assert ready().next([view(silent, proposers=("model", "ngram"))]) is None
    trial = ready().next([view(proposers=("model",))])
    assert trial is not None and trial.proposer == "model"


def test_several_sequences_have_prices_of_their_own() -> None:
    trials = Trials(changes_cost=False)
    for _ in range(20):
        pair = [finished(seconds=0.02, n_pass_rows=2, seq_id=s) for s in (0, 1)]
        trials.observe(pair)
    assert list(trials.table().measured) == [(256, 2)]
    assert trials.table().plain_s(50, 2) == pytest.approx(0.02)
