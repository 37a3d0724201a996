from __future__ import annotations

from dataclasses import replace
from random import Random
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.control.prices.cost import CostTable, load_costs
from parlay.control.prices.curve import Curve
from parlay.control.prices.drafter_cost import DrafterCost
from parlay.errors import BadRequest
from parlay.fleet.arrivals import Arrival, busiest, denser, from_log, poisson, rate_of
from parlay.fleet.exact_rows import ExactRows
from parlay.fleet.odds import Draws, Odds, recorded_odds
from parlay.fleet.prices import Prices
from parlay.fleet.simulated_machine import PassShape, SimulatedJob, SimulatedMachine, equal_parts
from parlay.fleet.simulation import Way, simulate
from parlay.fleet.sizing import Goals, machines_needed
from parlay.fleet.streams import _played, best_windows, crossing, speedups
from parlay.fleet.tables import cost_tables
from parlay.planning.requests import parse_line
from parlay.replay.recording import RecordedOffer, Recording

FIXED, PER_ROW = 0.010, 0.002


def table(fixed: float = FIXED, per_row: float = PER_ROW, drafter: bool = False) -> CostTable:
    """A pass costs `fixed` and so much for each row, whosever it is."""
    rows = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
    prices = {n: fixed + per_row * n for n in rows}
    curves = {(64, n): Curve({b: p for b, p in prices.items() if b >= n}, {}) for n in rows[:7]}
    cost = DrafterCost(Curve({1: 0.001, 512: 0.002}, {}), single_steps=False)
    return CostTable(curves, cost if drafter else None, prompt=Curve(prices, {}), name="made")


PRICES = Prices(table(drafter=True))
# As on a GPU: plain passes of one sequence are padded to two rows, and up to four may share one.
GPU = ExactRows({1: (2,), 2: (1, 2), 3: (1,), 4: (1,)})
arrivals_ = st.lists(
    st.tuples(st.floats(0, 5), st.integers(1, 400), st.integers(1, 60)), min_size=1, max_size=25
).map(lambda rows: [Arrival(t, p, a) for t, p, a in sorted(rows)])
shapes_ = st.builds(
    PassShape,
    slots=st.integers(1, 9),
    chunk=st.sampled_from((16, 128, 512)),
    exact=st.sampled_from((None, ExactRows.up_to(32), GPU)),
    splits=st.booleans(),
)
ways_ = st.one_of(
    st.just(Way()),
    st.builds(
        lambda a, k, offered: Way(Odds("made", (a,), offered), lambda _n: k),
        st.floats(0, 1),
        st.integers(0, 16),
        st.floats(0, 1),
    ),
)


# -- laws -------------------------------------------------------------------------------------


@given(arrivals_, shapes_, ways_, st.integers(1, 4))
@settings(max_examples=80)
def test_every_request_is_answered_once_and_in_order_of_time(
    arrivals: list[Arrival], shape: PassShape, way: Way, n_machines: int
) -> None:
    seen, jobs = simulate(arrivals, PRICES, shape, way, n_machines=n_machines)
    assert len(jobs) == seen.n_requests == len(arrivals)
    for job in jobs:
        assert job.n_made == job.arrival.n_answer and job.n_pending == 0
        assert job.arrival.at_s <= job.started_s <= job.first_s <= job.done_s
    assert 0 < seen.utilisation <= 1 + 1e-9
    tokens = sum(a.n_answer for a in arrivals)
    assert seen.tokens_per_s * seen.span_s == pytest.approx(tokens)


@given(arrivals_, shapes_, st.integers(0, 12))
@settings(max_examples=40)
def test_no_speed_up_where_nothing_is_accepted(
    arrivals: list[Arrival], shape: PassShape, window: int
) -> None:
    plain, _ = simulate(arrivals, PRICES, shape, Way())
    bet, _ = simulate(arrivals, PRICES, shape, Way(Odds.flat(0.0), lambda _n: window))
    assert bet.span_s >= plain.span_s - 1e-9


def test_the_same_seed_gives_the_same_figures_and_another_one_others() -> None:
    arrivals = poisson([(50, 40)], 2.0, 60, seed=1)
    way = Way(Odds.flat(0.6), lambda _n: 4)
    first, again, other = (
        simulate(arrivals, PRICES, PassShape(4), way, seed=seed)[0] for seed in (7, 7, 8)
    )
    assert first == again != other


def test_a_queue_with_one_slot_waits_as_theory_says() -> None:
    """Poisson arrivals, equal service, one server: the mean wait is rho D / (2 (1 - rho))."""
    service = FIXED + PER_ROW * 16
    for rho in (0.5, 0.8):
        arrivals = poisson([(16, 1)], rho / service, 16_000, seed=3)
        _, jobs = simulate(arrivals, PRICES, PassShape(1), Way())
        waited = mean(job.started_s - job.arrival.at_s for job in jobs)
        assert waited == pytest.approx(rho * service / (2 * (1 - rho)), rel=0.06)


def test_a_lone_request_takes_what_its_passes_take() -> None:
    seen, (job,) = simulate([Arrival(0.0, 200, 11)], PRICES, PassShape(4), Way())
    read = PRICES.prompt_s(128) + PRICES.prompt_s(72)
    assert job.ttft_s == pytest.approx(read)
    assert job.tpot_s == pytest.approx(PRICES.pass_s(1, 1, 64))
    assert seen.utilisation == pytest.approx(1.0)


def test_reused_tokens_are_not_read_again() -> None:
    _, (job,) = simulate([Arrival(0.0, 200, 2, n_reused=180)], PRICES, PassShape(1), Way())
    assert job.ttft_s == pytest.approx(PRICES.prompt_s(20))


def test_more_machines_do_not_keep_requests_waiting_longer() -> None:
    arrivals = poisson([(100, 60)], 3.0, 300, seed=2)
    waits = [
        simulate(arrivals, PRICES, PassShape(4), Way(), n_machines=n)[0].ttft_ms[1]
        for n in (1, 2, 4)
    ]
    assert waits[0] > waits[1] >= waits[2]


# -- what llama.cpp does with unequal spans ---------------------------------------------------


@pytest.mark.parametrize(
    ("spans", "parts"),
    [
        ({0: 1, 1: 1, 2: 1}, [(3, 1)]),
        ({0: 5, 1: 5}, [(2, 5)]),
        ({0: 1, 1: 5, 2: 1}, [(3, 1), (1, 4)]),
        ({0: 1, 2: 1}, [(1, 1), (1, 1)]),  # a gap between the slots
        ({0: 1, 1: 128}, [(2, 1), (1, 127)]),
        ({3: 600}, [(1, 512), (1, 88)]),
    ],
)
def test_unequal_spans_are_computed_apart(
    spans: dict[int, int], parts: list[tuple[int, int]]
) -> None:
    assert [(n, rows) for n, rows, _ in equal_parts(spans, 512)] == parts


@given(st.dictionaries(st.integers(0, 20), st.integers(1, 200), min_size=1))
def test_splitting_loses_no_row(spans: dict[int, int]) -> None:
    parts = equal_parts(spans, 512)
    assert sum(n * rows for n, rows, _ in parts) == sum(spans.values())
    assert all(n * rows <= 512 for n, rows, _ in parts)


# -- odds -------------------------------------------------------------------------------------


def test_drafts_are_accepted_as_often_as_the_odds_say() -> None:
    odds = Odds("made", (0.9, 0.7, 0.5), offered=1.0)
    draws = Draws(odds, Random(1))
    found = mean(1 + draws.accepted(5) for _ in range(40_000))
    assert found == pytest.approx(odds.expected(5), rel=0.01)


def test_odds_are_read_off_recordings_round_by_round() -> None:
    yes, no, none = RecordedOffer(2, (0.9, 0.9)), RecordedOffer(0, (0.5, 0.5)), RecordedOffer(0, ())
    recording = Recording("a", "chat", 5, "stop", {"suffix": (yes, none, none, no, none)})
    odds = recorded_odds([recording], "suffix")
    # Rounds at positions 0 (accepts two), 3 (rejected) and 4 (silent).
    assert odds.offered == pytest.approx(2 / 3) and not odds.drafts_by_model
    assert odds.by_position == (0.5, 1.0)
    with pytest.raises(BadRequest, match="known: suffix"):
        recorded_odds([recording], "model")


@pytest.mark.parametrize("bad", [(-0.1,), (1.1,), ()])
def test_odds_that_are_no_shares_are_refused(bad: tuple[float, ...]) -> None:
    with pytest.raises(BadRequest):
        Odds("bad", bad)


# -- streams ----------------------------------------------------------------------------------


def test_the_speed_up_falls_as_streams_share_the_machine_and_crosses_one() -> None:
    prices = Prices(table(fixed=0.05, drafter=True))
    points = speedups(prices, Odds.flat(0.7), PassShape(64), (1, 2, 4, 8, 16, 32, 64))
    found = [point.speedup for point in points]
    assert found == sorted(found, reverse=True) and found[0] > 1.5
    assert found[-1] == 1.0 and crossing(points) in (16, 32, 64)
    assert best_windows(points)[3] == best_windows(points)[2]


def test_playing_rounds_agrees_with_arithmetic() -> None:
    odds = Odds("made", (0.7,), drafts_by_model=False)
    for n, k in ((1, 4), (4, 2), (8, 6)):
        exact = n * odds.expected(k) / PRICES.pass_s(n, k + 1, 64)
        assert _played(PRICES, odds, PassShape(16), n, k, 64) == pytest.approx(exact, rel=0.12)


def test_a_row_that_costs_as_much_as_a_pass_pays_for_no_draft() -> None:
    prices = Prices(table(fixed=0.0001, per_row=0.01, drafter=True))
    points = speedups(prices, Odds.flat(0.9), PassShape(8), (1, 4, 8))
    assert all(point.window == 0 and point.speedup == 1.0 for point in points)
    assert crossing(points) == 1


def test_exact_shapes_limit_the_window_of_several_streams() -> None:
    prices = Prices(table(fixed=0.5, drafter=True))
    (point,) = speedups(prices, Odds.flat(0.95), PassShape(8, exact=ExactRows.up_to(32)), (8,))
    assert max(point.by_window) == 3  # 32 rows over eight sequences


def test_in_a_class_plain_passes_are_padded_and_too_many_take_turns() -> None:
    """Passes cost by their rows alone, so that padding to two rows takes twice as long."""
    prices = Prices(table(fixed=0.0, per_row=0.01))
    padded, several, too_many = (
        speedups(prices, Odds.flat(0.5), PassShape(8, exact=GPU), (n,), windows=())[0]
        for n in (1, 4, 5)
    )
    assert padded.plain_tps == pytest.approx(50)
    assert several.plain_tps == pytest.approx(100)
    assert too_many.plain_tps == pytest.approx(5 / 0.06)


def test_only_neighbours_share_a_pass_of_the_class() -> None:
    machine = SimulatedMachine(PRICES, PassShape(4, exact=GPU), None, lambda _n: 0, Random(1))
    jobs = [replace(SimulatedJob.of(Arrival(0.0, 1, 9)), slot=slot, n_made=1) for slot in (0, 2, 3)]
    parts = machine._in(GPU, jobs)
    assert [[job.slot for job in part] for part in parts] == [[0], [2, 3]]


# -- prices -----------------------------------------------------------------------------------


def test_prices_between_measured_numbers_of_sequences_lie_between() -> None:
    assert PRICES.pass_s(3, 1, 64) == pytest.approx(FIXED + 3 * PER_ROW)
    assert PRICES.pass_s(100, 2, 64) == pytest.approx(FIXED + 200 * PER_ROW)


def test_more_rows_than_a_pass_holds_are_several_passes() -> None:
    one = FIXED + 512 * PER_ROW
    assert PRICES.pass_s(1, 1024, 64) == pytest.approx(2 * one)
    assert PRICES.pass_s(1024, 1, 64) == pytest.approx(2 * one)
    assert PRICES.prompt_s(600) == pytest.approx(one + FIXED + 88 * PER_ROW)


def test_a_longer_text_costs_more_where_that_was_measured() -> None:
    short, long = Curve({1: 0.01, 8: 0.02}, {}), Curve({1: 0.02, 8: 0.03}, {})
    prices = Prices(CostTable({(256, 1): short, (1024, 1): long}))
    assert prices.pass_s(1, 1, 100) == pytest.approx(0.01)
    assert prices.pass_s(1, 1, 640) == pytest.approx(0.015)
    assert prices.pass_s(1, 1, 1792) == pytest.approx(0.03)


def test_a_change_of_shape_is_charged_where_it_costs() -> None:
    curve = Curve({1: 0.010, 8: 0.012}, {1: 0.015, 8: 0.017})
    prices = Prices(CostTable({(256, 1): curve}, prompt=curve))
    odds = Odds("made", (1.0,), offered=0.5, drafts_by_model=False)
    _, jobs = simulate([Arrival(0.0, 4, 50)], prices, PassShape(1), Way())
    assert jobs[0].tpot_s == pytest.approx((0.015 + 48 * 0.010) / 49)  # only the first differs
    bet, (job,) = simulate([Arrival(0.0, 1, 50)], prices, PassShape(1), Way(odds, lambda _n: 3))
    assert bet.span_s > 50 / 2.5 * 0.010 and job.n_made == 50


def test_every_table_that_comes_with_the_package_prices_many_streams() -> None:
    assert "cpu-q4_1-batch" in cost_tables() and "gpu-27b-q5_0" in cost_tables()
    for path in cost_tables().values():
        costs = load_costs(path)
        assert costs.origin
        assert Prices(costs).pass_s(4, 2, 256) > 0


# -- sizing and logs --------------------------------------------------------------------------


def test_the_smallest_fleet_that_keeps_the_goals_is_found() -> None:
    arrivals = poisson([(64, 32)], 12.0, 400, seed=5)
    goals = Goals(ttft_ms=600, tpot_ms=60)

    def run(n: int) -> object:
        return simulate(arrivals, PRICES, PassShape(4), Way(), n_machines=n)[0]

    size = machines_needed(run, goals, len(arrivals))  # type: ignore[arg-type]
    assert size.kept and size.n_machines > 1
    assert not goals.kept(run(size.n_machines - 1))  # type: ignore[arg-type]


def test_goals_no_fleet_can_keep_are_told() -> None:
    arrivals = poisson([(64, 8)], 1.0, 20, seed=5)
    size = machines_needed(
        lambda n: simulate(arrivals, PRICES, PassShape(4), Way(), n_machines=n)[0],
        Goals(tpot_ms=0.001),
        len(arrivals),
    )
    assert not size.kept and size.n_machines == 20


def test_a_log_becomes_arrivals() -> None:
    lines = (
        b'{"request_id": "a", "time": "2026-01-01T00:00:10.500Z", "e2e_ms": 500, "ttft_ms": 100,'
        b' "queue_ms": 0, "proposed_tokens": 0, "generated": 20, "prompt_tokens": 30,'
        b' "reused_tokens": 10}',
        b'{"created": 1767225608, "usage": {"prompt_tokens": 5, "completion_tokens": 7}}',
        b'{"timestamp": 1767225612.5, "usage": {"prompt_tokens": 5, "completion_tokens": 7}}',
    )
    found = from_log([request for line in lines if (request := parse_line(line))])
    assert [round(a.at_s, 3) for a in found] == [0.0, 2.0, 4.5]
    assert found[1] == Arrival(2.0, 30, 20, 10)
    with pytest.raises(BadRequest, match="time"):
        from_log([])


def test_the_busiest_stretch_of_a_log_is_taken() -> None:
    slow = [Arrival(10.0 * i, 4, 4) for i in range(10)]
    quick = [Arrival(100 + 0.1 * i, 4, 4) for i in range(10)]
    found = busiest([*slow, *quick], 8)
    assert found[0].at_s == 0 and rate_of(found) == pytest.approx(10)
    assert rate_of(denser(found, 3)) == pytest.approx(30)
