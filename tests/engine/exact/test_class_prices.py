"""The prices of classes, on a clock that the passes themselves move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import numpy as np
from numpy.typing import NDArray

from parlay.decoding.span import Span
from parlay.engine.exact.class_prices import class_prices, wanted
from tests.engine.rig import exact_class
from tests.scripted import ScriptedModel, hashed_logits

CLASSES = [exact_class(1, 2, 3), exact_class(4), exact_class(8, 12, 16)]


class Timed(ScriptedModel):
    """Passes that take as long as they are told to."""

    def __init__(self, disturbance: Callable[[], float] = lambda: 1.0) -> None:
        super().__init__(hashed_logits(16), 16, 256)
        self._disturbance = disturbance
        self.now = 0.0

    def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
        self.now += 0.01 * sum(len(span.tokens) for span in spans) * self._disturbance()
        return super().decode(spans)

    def clock(self) -> float:
        return self.now


def test_the_shapes_at_which_classes_begin_and_end_are_timed() -> None:
    alone = {shape.n_rows for shape in wanted(CLASSES, 1)}
    assert alone >= {1, 3, 4, 8, 16}
    assert max(alone) <= 17
    assert {shape.n_sequences for shape in wanted(CLASSES, 8)} == {1, 2, 4, 8}


def test_cheap_shapes_come_first_and_a_budget_ends_it() -> None:
    model = Timed()
    table = class_prices(model, CLASSES, 1, budget_s=0.29, clock=model.clock)
    assert table.curve(1, 1).known == {1, 2, 3}
    assert model.now < 1.0


def test_without_time_the_cheapest_shape_is_timed_once() -> None:
    model = Timed()
    table = class_prices(model, CLASSES, 1, budget_s=-1.0, clock=model.clock)
    assert table.curve(1, 1).known == {1}


def test_other_work_on_the_machine_hardly_moves_a_price() -> None:
    """A third of the passes take up to five times as long; the shortest of several counts."""
    dice = Random(3)
    model = Timed(lambda: dice.uniform(2.0, 5.0) if dice.random() < 0.3 else 1.0)
    table = class_prices(model, CLASSES, 4, budget_s=1e9, clock=model.clock)
    for shape in wanted(CLASSES, 4):
        price = table.curve(1, shape.n_sequences).steady[shape.total]
        assert abs(price / (0.01 * shape.total) - 1.0) < 0.02


def test_times_that_never_agree_are_not_believed() -> None:
    dice = Random(3)
    model = Timed(lambda: dice.choice([1.0, 3.0, 9.0, 27.0, 81.0]))
    assert not class_prices(model, CLASSES, 1, budget_s=1e9, clock=model.clock).stable
    quiet = Timed()
    assert class_prices(quiet, CLASSES, 1, budget_s=1e9, clock=quiet.clock).stable


def test_every_shape_is_timed_in_turns() -> None:
    model, shapes = Timed(), [shape.n_rows for shape in wanted(CLASSES, 1)]
    class_prices(model, CLASSES, 1, budget_s=1e9, clock=model.clock)
    passes = [rows for (rows,) in model.shapes[2:]]  # a text was read before
    assert passes[: 2 * len(shapes)] == [*shapes, *shapes]


def test_where_a_change_of_shape_costs_a_shape_is_timed_until_it_is_steady() -> None:
    """The first pass of a shape changes it, the second is recorded; later ones tell its price."""

    class Graphs(Timed):
        steady = True
        last, n_same = 0, 0

        def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
            rows = sum(len(span.tokens) for span in spans)
            self.n_same = self.n_same + 1 if rows == self.last else 1
            self.last = rows
            self.now += {1: 3.0, 2: 5.0}.get(self.n_same, 0.0)
            return super().decode(spans)

    model = Graphs()
    steady = class_prices(model, CLASSES, 1, budget_s=1e9, clock=model.clock).curve(1, 1).steady
    assert steady[8] / steady[1] > 7.0
