"""Prices by rows: what lies between those that were measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlay.control.prices.curve import MAX_ROWS, Curve

rising = st.dictionaries(st.integers(1, 64), st.floats(0.001, 1.0), min_size=1).map(
    lambda points: dict(zip(sorted(points), sorted(points.values()), strict=True))
)


@given(rising)
def test_prices_between_measured_shapes_rise_as_those_do(points: dict[int, float]) -> None:
    curve = Curve(points, {})
    assert len(curve.steady) == MAX_ROWS + 1
    assert all(a <= b + 1e-12 for a, b in zip(curve.steady, curve.steady[1:], strict=False))
    assert all(curve.steady[rows] == pytest.approx(seconds) for rows, seconds in points.items())


def test_a_measured_step_down_is_kept() -> None:
    curve = Curve({1: 1.0, 5: 3.0, 8: 2.0}, {})
    assert curve.steady[5] > curve.steady[8]
    assert 2.0 < curve.steady[6] < 3.0
