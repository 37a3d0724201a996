from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from parlay.control.prices.undoing import FOR_NOTHING
from parlay.decoding.span import Span
from parlay.engine.exact.probe import Walker, probe_whole
from parlay.errors import BadRequest
from parlay.timing.measuring import Stopwatch, measure, measure_drafter
from tests.scripted import ScriptedModel, hashed_logits


class Clock:
    """Time that passes only when somebody says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class SlowModel(ScriptedModel):
    """A scripted model whose passes take the time a rule says."""

    def __init__(
        self, clock: Clock, seconds: Callable[[int, bool], float], steady: bool = False
    ) -> None:
        super().__init__(hashed_logits(32), 32, context_size=512)
        self.steady = steady
        self._clock, self._seconds = clock, seconds
        self._last: tuple[int, ...] = ()

    def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
        shape = tuple(len(span.tokens) for span in spans)
        self._clock.now += self._seconds(sum(shape), shape != self._last)
        self._last = shape
        return super().decode(spans)


def linear(rows: int, _changed: bool) -> float:
    return 0.008 * (0.6 + 0.4 * rows)


def test_the_table_holds_what_passes_took() -> None:
    clock = Clock()
    target = Stopwatch(SlowModel(clock, linear), clock)
    found = measure(target, None, max_window=16, clock=clock, budget_s=60)
    assert found.stable
    curve = found.curve(100, 1)
    for rows in (1, 2, 9, 13, 17):
        assert abs(curve.steady[rows] - linear(rows, False)) < 1e-4
    assert not curve.prices_change
    assert target.length(0) == 0


class Recurrent(SlowModel):
    """Takes two tokens back for nothing; more cost a copy before the pass and 30 ms after it."""

    free_rollback = 2

    def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
        if max(span.n_logits for span in spans) > 1 + self.free_rollback:
            self._clock.now += 0.002
        return super().decode(spans)

    def truncate(self, seq_id: int, length: int) -> None:
        if self.length(seq_id) - length > self.free_rollback:
            self._clock.now += 0.030
        super().truncate(seq_id, length)


def test_copies_are_in_the_price_of_a_pass_and_going_back_to_one_has_its_own() -> None:
    clock = Clock()
    target = Stopwatch(Recurrent(clock, linear), clock)
    found = measure(target, None, max_window=8, clock=clock, budget_s=60)
    curve = found.curve(100, 1)
    for rows in (1, 2, 3):
        assert abs(curve.steady[rows] - linear(rows, False)) < 1e-4
    for rows in (4, 6, 9):
        assert abs(curve.steady[rows] - linear(rows, False) - 0.002) < 1e-4
    assert found.undoing.free == 2
    assert abs(found.undoing.seconds - 0.030) < 1e-4


def test_what_is_taken_back_for_nothing_has_no_price() -> None:
    clock = Clock()
    found = measure(Stopwatch(SlowModel(clock, linear), clock), None, max_window=8, clock=clock)
    assert found.undoing == FOR_NOTHING


def test_probe_and_table_together_stay_below_four_seconds() -> None:
    """For a model that takes 8 ms a token and as much more per row as the default one."""
    clock = Clock()
    target = Stopwatch(SlowModel(clock, linear), clock)
    drafter = SlowModel(clock, linear)
    probe_whole(Walker(target, 16), 17, 0)
    found = measure(target, drafter, max_window=16, clock=clock)
    assert clock.now < 4.0
    assert found.drafter is not None and found.drafter.step_s() > 0.007


def test_the_passes_of_the_probe_are_not_made_again() -> None:
    clock = Clock()
    target = Stopwatch(SlowModel(clock, linear), clock)
    probe_whole(Walker(target, 16), 17, 0)
    before = {rows: len(target.samples[1, rows, False]) for rows in (1, 5, 8)}
    measure(target, None, max_window=16, clock=clock)
    after = {rows: len(target.samples[1, rows, False]) for rows in before}
    assert after == {rows: max(before[rows], {1: 8, 5: 3, 8: 1}[rows]) for rows in before}


def test_a_changed_shape_is_timed_apart_where_it_matters() -> None:
    def graphs(rows: int, changed: bool) -> float:
        return 0.010 + 0.001 * rows + 0.002 * changed

    clock = Clock()
    target = Stopwatch(SlowModel(clock, graphs, steady=True), clock)
    drafter = SlowModel(clock, graphs, steady=True)
    found = measure(target, drafter, max_window=8, clock=clock, budget_s=60)
    curve = found.curve(100, 1)
    assert curve.prices_change
    for rows in (2, 5, 9):
        assert abs(curve.changed[rows] - curve.steady[rows] - 0.002) < 1e-4
    assert found.drafter is not None and found.drafter.single_steps
    assert abs(found.drafter.step_s() - 0.011) < 1e-4
    assert found.drafter.catch_up_s(3) < found.drafter.catch_up_s(40)


def test_a_steady_pass_is_never_dearer_than_a_changed_one() -> None:
    """A text that grows while a wide shape is timed makes its steady passes the slow ones."""

    def odd(rows: int, changed: bool) -> float:
        return 0.010 + 0.001 * rows + (-0.004 if changed and rows == 33 else 0.002 * changed)

    clock = Clock()
    target = Stopwatch(SlowModel(clock, odd, steady=True), clock)
    found = measure(target, None, max_window=16, most_rows=65, clock=clock, budget_s=60)
    curve = found.curve(100, 1)
    assert all(s <= c for s, c in zip(curve.steady[1:], curve.changed[1:], strict=True))


def test_a_tight_budget_times_the_widths_that_kernels_end_at() -> None:
    clock = Clock()
    target = Stopwatch(SlowModel(clock, linear, steady=True), clock)
    found = measure(target, None, max_window=16, clock=clock, budget_s=2.0)
    assert {1, 2, 4, 8, 16} <= found.curve(100, 1).known


class Narrow(SlowModel):
    """Refuses passes over more rows than its batch holds."""

    def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
        if sum(len(span.tokens) for span in spans) > 64:
            raise BadRequest("a pass holds 64 rows")
        return super().decode(spans)


def test_reading_a_whole_text_is_timed_on_a_gpu_where_it_costs_little() -> None:
    """A line through 1 and 32 rows would make it dearer than all that the drafter could save."""

    def flat(rows: int, changed: bool) -> float:
        return 0.001 + 0.0001 * min(rows, 40) + 0.0005 * changed

    clock = Clock()
    found = measure_drafter(SlowModel(clock, flat, steady=True), clock)
    assert found.catch_up_s(256) < 0.02
    narrow = measure_drafter(Narrow(clock, flat, steady=True), clock)
    assert narrow.step_s() == pytest.approx(found.step_s(), rel=0.1)
    assert narrow.catch_up_s(256) > 0.02


def test_the_first_pass_of_a_shape_does_not_count_as_a_change_on_a_gpu() -> None:
    """It loads kernels, which takes many times as long and happens once."""
    clock, seen = Clock(), set[int]()

    def loading(rows: int, changed: bool) -> float:
        first = rows not in seen
        seen.add(rows)
        return 0.010 + 0.001 * rows + (0.002 if changed else 0.0) + (0.5 if first else 0.0)

    target = Stopwatch(SlowModel(clock, loading, steady=True), clock)
    found = measure(target, None, max_window=8, budget_s=60.0, clock=clock)
    curve = found.curve(100, 1)
    for rows in range(1, 10):
        assert abs(curve.changed[rows] - curve.steady[rows] - 0.002) < 1e-4


def test_a_busy_machine_is_said_to_be_unstable() -> None:
    rng, clock = random.Random(5), Clock()
    target = Stopwatch(
        SlowModel(clock, lambda rows, changed: linear(rows, changed) * rng.choice((1, 1, 4))), clock
    )
    assert not measure(target, None, max_window=8, clock=clock, budget_s=60).stable


def test_the_budget_is_kept_and_the_rest_interpolated() -> None:
    clock = Clock()
    target = Stopwatch(SlowModel(clock, lambda rows, _: 0.5 * rows), clock)
    found = measure(target, None, max_window=16, clock=clock, budget_s=6.0)
    assert clock.now < 25.0  # one task may run over, no more are started
    assert found.curve(100, 1).steady[17] > found.curve(100, 1).steady[1]


def test_a_machine_too_slow_for_the_budget_still_prices_target_and_drafter() -> None:
    clock = Clock()
    target = Stopwatch(SlowModel(clock, lambda rows, _: 5.0 * rows), clock)
    drafter = SlowModel(clock, lambda rows, _: 1.0 * rows)
    found = measure(target, drafter, max_window=8, clock=clock, budget_s=1.0)
    assert found.drafter is not None and found.drafter.draft_s(1) > 0


def test_progress_is_told() -> None:
    clock, told = Clock(), list[tuple[float, str]]()
    target = Stopwatch(SlowModel(clock, linear), clock)
    measure(
        target,
        None,
        max_window=4,
        n_sequences=2,
        clock=clock,
        progress=lambda share, what: told.append((share, what)),
    )
    shares = [share for share, _ in told]
    assert shares == sorted(shares) and shares[-1] == 1.0
    assert "2 sequences" in [what for _, what in told]


def test_several_sequences_have_prices_of_their_own() -> None:
    clock = Clock()
    model = SlowModel(clock, lambda rows, _: 0.01 * rows)
    found = measure(Stopwatch(model, clock), None, max_window=4, n_sequences=3, clock=clock)
    assert abs(found.curve(100, 3).steady[6] - 0.06) < 1e-3
    assert model.cache == {}


def test_a_changed_shape_of_several_sequences_is_timed_apart_too() -> None:
    clock = Clock()

    def graphs(rows: int, changed: bool) -> float:
        return linear(rows, False) + 0.003 * changed

    target = Stopwatch(SlowModel(clock, graphs, steady=True), clock)
    found = measure(target, None, max_window=4, n_sequences=4, clock=clock, budget_s=60)
    for n in (2, 4):
        curve = found.curve(100, n)
        assert curve.prices_change and curve.settling_s == 0.0
        assert curve.changed[2 * n] - curve.steady[2 * n] == pytest.approx(0.003)


def test_a_drafter_that_comes_later_is_measured_alone() -> None:
    clock = Clock()
    cost = measure_drafter(SlowModel(clock, linear), clock)
    assert abs(cost.step_s() - 0.008) < 1e-4 and not cost.single_steps


class Mixture(SlowModel):
    """A pass takes as long as its rows differ: each kind of token has experts of its own."""

    def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
        self._clock.now += 0.001 * len({t % 16 for span in spans for t in span.tokens})
        return super().decode(spans)


def test_prices_are_measured_with_the_models_own_text() -> None:
    prices = {}
    for name, text in (("varied", range(31)), ("same", [7] * 31)):
        clock = Clock()
        model = Mixture(clock, lambda _rows, _changed: 0.001)
        model.sample = list(text)
        found = measure(Stopwatch(model, clock), None, max_window=8, clock=clock, budget_s=60)
        prices[name] = found.curve(100, 1).steady
    assert prices["varied"][1] == prices["same"][1]
    assert prices["varied"][8] > 3 * prices["same"][8]


def test_sequences_together_read_different_text() -> None:
    clock = Clock()
    model = Mixture(clock, lambda _rows, _changed: 0.001)
    model.sample = list(range(31))
    found = measure(
        Stopwatch(model, clock), None, max_window=2, n_sequences=4, clock=clock, budget_s=60
    )
    assert found.curve(100, 4).steady[4] > 2 * found.curve(100, 1).steady[1]
