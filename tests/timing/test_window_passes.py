"""Passes run shape by shape: warmed up, timed, and taken back."""

from __future__ import annotations

from parlay.testing import ScriptedModel, hashed_logits
from parlay.timing.window_passes import time_passes, warm_up


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
