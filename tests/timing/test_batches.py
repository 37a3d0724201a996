from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from parlay.control.prices.cost import CostTable
from parlay.control.prices.curve import MAX_ROWS
from parlay.decoding.span import Span
from parlay.timing.batches import BatchPlan, batch_shapes, measure_batches
from parlay.timing.shape_runs import TimedShape, time_shapes
from tests.scripted import ScriptedModel

Rule = Callable[[int, int, bool], float]  # sequences, rows of all, whether the shape changed


class TimedModel(ScriptedModel):
    """A model without a mind whose passes take the time a rule says."""

    def __init__(self, rule: Rule, steady: bool = False, context_size: int = 1024) -> None:
        super().__init__(lambda _: np.zeros(8, np.float32), 8, context_size)
        self.steady, self._rule = steady, rule
        self._last: tuple[int, ...] = ()
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
        shape = tuple(len(span.tokens) for span in spans)
        self.now += self._rule(len(shape), sum(shape), shape != self._last)
        self._last = shape
        return super().decode(spans)


def per_row(n_sequences: int, rows: int, _changed: bool) -> float:
    return 0.01 + 0.001 * rows + 0.0005 * n_sequences


def measured(model: TimedModel, budget_s: float = 1e6, n_times: int = 1) -> CostTable:
    plan = BatchPlan(4, n_times=n_times, budget_s=budget_s)
    return measure_batches(model, plan, clock=model.clock)


def test_shapes_stay_within_the_rows_of_a_table_and_none_comes_twice() -> None:
    shapes = batch_shapes(256)
    assert len(shapes) == len(set(shapes))
    assert max(s.total for s in shapes) == MAX_ROWS
    assert max(s.n_sequences for s in shapes) == 256
    assert max(s.n_sequences for s in batch_shapes(9)) == 9


def test_the_table_tells_sequences_apart_and_reaches_512_rows() -> None:
    found = measured(TimedModel(per_row))
    for n, rows in ((1, 1), (1, 512), (2, 2), (4, 68), (3, 9)):
        assert found.curve(64, n).steady[rows] == pytest.approx(per_row(n, rows, False), abs=3e-4)
    assert found.prompt is not None
    assert found.prompt.steady[512] == pytest.approx(per_row(1, 512, False))


def test_a_table_comes_back_from_its_file_as_it_went() -> None:
    found = measured(TimedModel(per_row))
    again = CostTable.from_dict(found.to_dict())
    assert again.to_dict() == found.to_dict()
    assert again.prompt is not None and set(again.measured) == set(found.measured)


def test_where_a_change_of_shape_costs_both_prices_are_kept() -> None:
    model = TimedModel(lambda n, rows, changed: per_row(n, rows, False) + 0.02 * changed, True)
    curve = measured(model).curve(64, 2)
    assert curve.prices_change
    assert curve.changed[8] - curve.steady[8] == pytest.approx(0.02, abs=1e-4)


def test_nothing_is_left_in_the_cache() -> None:
    model = TimedModel(per_row)
    measured(model)
    assert model.cache == {}


def test_the_budget_is_kept_and_the_most_important_shapes_come_first() -> None:
    model = TimedModel(lambda _n, rows, _changed: 0.1 * rows)
    found = measured(model, budget_s=60.0)
    assert model.now < 60.0 + 52.0  # one pass may run over
    assert sorted(n for _, n in found.measured) == [1, 2, 3, 4]


def test_a_machine_whose_equal_passes_differ_is_said_to_be_unstable() -> None:
    rng = random.Random(3)
    assert measured(TimedModel(per_row), n_times=3).stable
    busy = TimedModel(lambda n, rows, changed: per_row(n, rows, changed) * rng.choice((1, 3)))
    assert not measured(busy, n_times=5).stable


def test_shapes_past_the_context_are_left_out() -> None:
    model = TimedModel(per_row, context_size=100)
    found = time_shapes(
        model,
        [TimedShape(1, 4), TimedShape(1, 40)],
        n_times=1,
        budget_s=9,
        n_context=64,
        clock=model.clock,
    )
    assert list(found) == [TimedShape(1, 4)]


def test_a_drafter_is_priced_by_sequences_not_by_the_prompts_it_reads() -> None:
    model, drafter = (
        TimedModel(per_row),
        TimedModel(lambda n, rows, _c: 0.001 * n + 0.01 * (n < rows)),
    )
    plan = BatchPlan(16, n_times=1, budget_s=1e6)
    found = measure_batches(model, plan, drafter, clock=drafter.clock)
    assert found.drafter is not None
    for n in (1, 4, 16):
        assert found.drafter.step_s(n) == pytest.approx(0.001 * n, abs=1e-4)
