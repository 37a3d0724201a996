from __future__ import annotations

import json
from pathlib import Path

import pytest

from parlay.control.prices.cost import CostTable, load_costs, shipped_tables
from parlay.control.prices.curve import Curve
from parlay.control.prices.drafter_cost import DrafterCost
from parlay.errors import BadRequest
from tests.control.synthetic import table


def test_an_outlier_moves_a_price_a_little_only() -> None:
    costs = table()
    costs.observe(3, 50, 1, changed=False, seconds=1000.0)
    curve = costs.curve(50, 1)
    assert curve.steady[3] * costs.pace < 1.6 * 1.1


def test_prices_follow_a_machine_that_slows_down() -> None:
    costs = table()
    for _ in range(60):
        costs.observe(3, 50, 1, changed=False, seconds=2 * 1.6)
    curve = costs.curve(50, 1)
    assert curve.steady[3] * costs.pace == pytest.approx(3.2, rel=0.02)
    # Most of it is the machine's pace, which holds for every shape.
    assert costs.pace > 1.5


def test_what_a_start_measured_of_changes_is_one_moment_and_is_corrected_for_all_shapes() -> None:
    """A start found 6.9 ms where every change after it took 4.5."""
    costs = table(change=2.0)
    for _ in range(3):
        costs.observe(1, 50, 1, changed=True, seconds=2.0)
    curve = costs.curve(50, 1)
    changes = [curve.changed[rows] - curve.steady[rows] for rows in (1, 2, 9, 17, 64)]
    assert all(1.0 <= change * costs.pace < 1.35 for change in changes)
    assert curve.steady[9] * costs.pace == pytest.approx(table().curve(50, 1).steady[9], rel=0.15)


def test_a_single_change_that_took_long_is_hardly_believed_once_many_were_seen() -> None:
    costs = table(change=1.0)
    for seconds in (*[2.0] * 10, 50.0):
        costs.observe(1, 50, 1, changed=True, seconds=seconds)
    curve = costs.curve(50, 1)
    assert curve.changed[9] - curve.steady[9] < 1.1


@pytest.mark.parametrize(("believed", "seen"), [(4.0, 1.0), (0.5, 2.0), (3.0, 0.0)])
def test_settling_is_believed_as_it_is_seen(believed: float, seen: float) -> None:
    costs = table(change=0.2)
    curve = costs.curve(50, 1)
    curve.settling_s = believed
    costs.observe_settling(1, 50, 1, 1.0 + seen)
    first = curve.settling_s
    assert min(believed, seen) <= first <= max(believed, seen) and first != believed
    for _ in range(40):
        costs.observe_settling(1, 50, 1, 1.0 + seen)
    assert curve.settling_s == pytest.approx(seen, abs=0.1)


def test_changed_and_steady_shapes_are_told_apart() -> None:
    costs = table(change=0.2)
    for _ in range(100):
        costs.observe(3, 50, 1, changed=True, seconds=2.5)
        costs.observe(3, 50, 1, changed=False, seconds=1.6)
    curve = costs.curve(50, 1)
    assert curve.changed[3] / curve.steady[3] == pytest.approx(2.5 / 1.6, rel=0.05)


def test_a_context_never_measured_starts_from_the_nearest_one_and_learns_alone() -> None:
    costs = table()
    before = costs.curve(50, 1).steady[2]
    assert costs.curve(40_000, 1).steady[2] == before
    for _ in range(50):
        costs.observe(2, 40_000, 1, changed=False, seconds=3.0)
    assert costs.curve(50, 1).steady[2] == before
    assert costs.curve(40_000, 1).steady[2] > before


def test_a_table_survives_its_json_form() -> None:
    costs = table(change=0.1, stable=False)
    costs.observe(4, 50, 1, changed=False, seconds=2.5)
    again = CostTable.from_dict(json.loads(json.dumps(costs.to_dict())))
    assert not again.stable
    for rows in (1, 4, 17):
        was = costs.curve(50, 1).of(rows, changed=False) * costs.pace
        assert again.curve(50, 1).of(rows, changed=False) == pytest.approx(was, rel=1e-4)
    assert again.drafter is not None and costs.drafter is not None
    assert again.drafter.step_s() == pytest.approx(costs.pace * costs.drafter.step_s(), rel=1e-4)


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"parlay_costs": 99},
        {"parlay_costs": 1, "target": []},
        {"parlay_costs": 1, "target": [{"context": 1, "sequences": 1, "steady_ms": {}}]},
        {"parlay_costs": 1, "target": [{"context": 1, "sequences": 1, "steady_ms": {"1": -2}}]},
        {"parlay_costs": 1, "target": [{"context": 1, "sequences": 1, "steady_ms": {"0": 2}}]},
        {"parlay_costs": 1, "target": 3},
    ],
)
def test_what_is_no_table_is_refused_in_one_line(record: dict[str, object]) -> None:
    with pytest.raises(BadRequest) as caught:
        CostTable.from_dict(record)
    assert "\n" not in caught.value.message


def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text("{")
    with pytest.raises(BadRequest):
        load_costs(path)


def test_every_shipped_table_names_its_origin_and_has_a_drafter() -> None:
    tables = shipped_tables()
    assert len(tables) >= 10
    for costs in tables:
        assert len(costs.origin) > 40
        assert costs.drafter is not None
        # A pass over more rows never costs less than a plain one.
        curve = costs.curve(100, 1)
        assert min(curve.steady[1:18]) == curve.steady[1]
        assert all(curve.changed[b] >= curve.steady[b] for b in range(1, 18))


def test_the_price_of_blocks_survives_a_file() -> None:
    block = Curve({2: 0.010, 8: 0.016}, {})
    drafter = DrafterCost(Curve({1: 0.001, 64: 0.004}, {}), single_steps=False, block=block)
    table = CostTable({(1, 1): Curve({1: 0.01, 4: 0.02}, {})}, drafter)
    again = CostTable.from_dict(table.to_dict()).drafter
    assert again is not None
    assert again.draft_s(7, 3) == pytest.approx(drafter.draft_s(7, 3))


@pytest.mark.parametrize("change", [0.0, 0.3])
def test_a_wide_pass_gets_its_price_when_it_first_comes_up(change: float) -> None:
    """What was measured says a second a row; in truth the wide one takes 3, after a slow first."""
    changed = {1: 1.0 + change, 5: 5.0 + change} if change else {}
    costs = CostTable({(1, 1): Curve({1: 1.0, 5: 5.0}, changed)})
    curve = costs.curve(50, 1)
    assert curve.steady[65] == pytest.approx(65.0)
    if change:
        costs.observe(65, 50, 1, changed=True, seconds=40.0)  # its kernels were loaded
        assert curve.steady[65] == pytest.approx(65.0)
    costs.observe(65, 50, 1, changed=True, seconds=3.0 + change)
    assert curve.steady[65] == pytest.approx(3.0)
    assert 3.0 < curve.steady[33] < 5.0 and curve.steady[128] > 3.0
    costs.observe(65, 50, 1, changed=False, seconds=4.0)
    assert curve.steady[65] == pytest.approx(3.5)
    assert costs.pace == 1.0  # a price nobody knew says nothing about the machine


def _many(*numbers: int) -> CostTable:
    """A pass takes 1 ms, a sequence 0.25 ms more, each further row of one 0.1 ms more."""

    def seconds(n: int, each: int) -> float:
        return 1e-3 + 0.25e-3 * n + 0.1e-3 * n * (each - 1)

    return CostTable(
        {(1, n): Curve({n * each: seconds(n, each) for each in (1, 2, 4)}, {}) for n in numbers}
    )


def test_prices_between_two_numbers_of_sequences_go_by_the_rows_of_each() -> None:
    curve = _many(1, 8, 16).curve(1, 12)
    assert curve.steady[12] == pytest.approx(4.0e-3)
    assert curve.steady[24] == pytest.approx(5.2e-3)  # two rows each, as eight and sixteen had
    assert curve.steady[18] == pytest.approx(4.6e-3)


@pytest.mark.parametrize("n", [3, 17, 40])
def test_what_no_similar_number_of_sequences_was_measured_for_is_dear_not_free(n: int) -> None:
    costs = _many(1, 8, 16)
    plain_s, single_s = costs.curve(1, n).steady[n], costs.curve(1, 1).steady[1]
    assert costs.curve(1, n).steady[n + 1] == pytest.approx(plain_s + single_s)
    assert costs.curve(1, n).steady[3 * n] == pytest.approx(plain_s + 2 * n * single_s)


def test_made_up_prices_are_not_written_down() -> None:
    costs = _many(1, 8)
    costs.curve(1, 5)
    costs.curve(1, 40)
    assert {c["sequences"] for c in costs.to_dict()["target"]} == {1, 8}


def test_what_a_drafter_costs_follows_the_machine_into_the_json_form() -> None:
    costs = table()
    assert costs.drafter is not None
    costs.pace = 2.0
    again = costs.copy()
    assert again.pace == 1.0 and again.drafter is not None
    assert again.drafter.step_s() == pytest.approx(2 * costs.drafter.step_s())


def test_no_pass_is_believed_to_take_no_time() -> None:
    """What taking drafts back took was overrated, and all that was left of a pass was nothing."""
    costs = table()
    for _ in range(6):
        costs.observe(40, 50, 1, changed=False, seconds=0.0)
    assert min(costs.curve(50, 1).steady[1:64]) > 0.9 * costs.curve(50, 1).steady[1]
