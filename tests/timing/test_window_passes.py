"""Passes run shape by shape: warmed up, timed, and taken back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from parlay.decoding.span import Span
from parlay.timing.shape_runs import TimedShape, time_shapes
from parlay.timing.window_passes import time_passes, warm_up
from tests.scripted import ScriptedModel, hashed_logits


def test_passes_are_timed_shape_by_shape_and_leave_nothing_behind() -> None:
    model = ScriptedModel(hashed_logits(32), 32, context_size=64)
    now = [0.0]

    def clock() -> float:
        now[0] += 0.001
        return now[0]

    found = time_passes(model, (1, 2, 4, 400), n_times=3, budget_s=100, clock=clock)
    assert list(found) == [1, 2, 4]
    assert all(seconds > 0 for seconds in found.values())
    assert model.length(0) == 0
    assert model.shapes.count((2,)) == 4  # warmed once, timed three times


def test_warm_up_runs_each_shape_once() -> None:
    model = ScriptedModel(hashed_logits(32), 32, context_size=64)
    assert warm_up(model, range(1, 4)) == [1, 2, 3]
    assert model.shapes == [(16,), (1,), (2,), (3,)]


class Graphs(ScriptedModel):
    """A pass costs a second and a tenth a row; one of another shape three more, the one after it
    five."""

    steady = True

    def __init__(self, *, recurrent: bool = False) -> None:
        super().__init__(hashed_logits(32), 32, context_size=256)
        self._recurrent = recurrent
        self.now, self._n_before = 0.0, 0
        self._last: tuple[int, ...] = ()

    def clock(self) -> float:
        return self.now

    def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
        shape = tuple(len(span.tokens) for span in spans)
        self._n_before = self._n_before + 1 if shape == self._last else 0
        self._last = shape
        self.now += 1.0 + 0.1 * sum(shape) + {0: 3.0, 1: 5.0}.get(self._n_before, 0.0)
        return super().decode(spans)

    def reusable(self, seq_id: int, length: int) -> int:
        whole = length == self.length(seq_id)
        return length if whole or not self._recurrent else 0


@pytest.mark.parametrize("recurrent", [False, True])
def test_the_price_of_a_shape_holds_nothing_of_what_changing_to_it_costs(recurrent: bool) -> None:
    """A mixture once seemed to need as long for one row as for eight: each pass changed its shape,
    or was the one that a GPU records."""
    model = Graphs(recurrent=recurrent)
    found = time_passes(model, (1, 2, 8, 17), n_times=2, budget_s=1e9, clock=model.clock)
    assert found == pytest.approx({rows: 1.0 + 0.1 * rows for rows in (1, 2, 8, 17)})


def test_a_change_and_the_pass_that_is_recorded_have_prices_of_their_own() -> None:
    model = Graphs()
    shape = TimedShape(1, 4)
    found = time_shapes(
        model, [TimedShape(1, 1), shape], n_times=3, budget_s=1e9, n_context=16, clock=model.clock
    )
    times = found[shape]
    assert times.changed == pytest.approx([4.4] * 3)
    assert times.settling == pytest.approx([6.4] * 3)
    assert times.steady == pytest.approx([1.4] * 6)


def test_shapes_are_timed_in_turns_so_that_a_slow_moment_hits_all() -> None:
    model = Graphs()
    time_passes(model, (1, 2), n_times=2, budget_s=1e9, clock=model.clock)
    order = [rows for (rows,) in model.shapes if rows < 16]
    assert order == [1, 1, 1, 1, 2, 2, 2, 2] * 3  # once to warm up


def test_a_wide_pass_that_leaves_no_room_for_a_second_one_is_known_from_above() -> None:
    model = Graphs(recurrent=True)
    found = time_passes(model, (190,), n_times=1, budget_s=1e9, clock=model.clock)
    assert found == pytest.approx({190: 1.0 + 19.0 + 3.0})
