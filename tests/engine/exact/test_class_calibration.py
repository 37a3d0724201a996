"""When a class is chosen, and when an earlier choice is kept; prices are given, not measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from parlay.control.prices.cost import CostTable
from parlay.control.prices.curve import Curve
from parlay.engine.engine import Engine
from parlay.engine.exact.class_calibration import exact_rows_told, exactness_told
from tests.engine.test_engine import settings
from tests.requantise import requantise

pytestmark = pytest.mark.usefixtures("own_cache_folder")

# With these the class of single rows costs least, and with those the one that has wider passes.
DEAR = Curve({1: 1.0, 2: 2.0, 17: 17.0}, {})
CHEAP = Curve({1: 1.0, 2: 1.0, 17: 1.1}, {})


@pytest.fixture(scope="module")
def target(tiny_wide: Path, tiny_folder: Path) -> Path:
    """Its passes over one row round differently from all others."""
    return requantise(tiny_wide, tiny_folder / "calibrated-f16.gguf", "f16")


class Prices:
    """What the next measurement will find."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.curve, self.stable, self.n_asked = DEAR, True, 0
        monkeypatch.setattr("parlay.engine.exact.class_calibration.class_prices", self._measure)

    def _measure(self, *_: object, **_options: object) -> CostTable:
        self.n_asked += 1
        return CostTable({(1, 1): self.curve.copy()}, stable=self.stable)


@pytest.fixture
def prices(monkeypatch: pytest.MonkeyPatch) -> Prices:
    return Prices(monkeypatch)


def floor(target: Path, **options: Any) -> int:
    with Engine(settings(target, "suffix", **options)) as engine:
        return engine.exact.floor


def test_prices_choose_the_class(target: Path, prices: Prices) -> None:
    assert floor(target) == 1
    prices.curve = CHEAP
    assert floor(target, measure_again=True) == 2


def test_a_choice_is_kept_whatever_later_prices_say(target: Path, prices: Prices) -> None:
    assert floor(target) == 1
    prices.curve = CHEAP
    assert floor(target) == 1
    assert prices.n_asked == 1


def test_a_choice_made_on_a_busy_machine_is_made_again(target: Path, prices: Prices) -> None:
    prices.stable = False
    assert floor(target) == 1
    prices.curve, prices.stable = CHEAP, True
    assert floor(target) == 2
    prices.curve = DEAR
    assert floor(target) == 2


def test_a_default_does_not_waver_with_prices_near_its_limit(
    target: Path, prices: Prices, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = []
    for cost in (0.049, 0.055, 0.07, 0.055, 0.049):
        monkeypatch.setattr("parlay.engine.exact.class_choice.Valuation.cost", lambda *_, c=cost: c)
        with Engine(settings(target, "suffix")) as engine:
            modes.append(engine.mode)
    assert modes == ["exact", "exact", "faithful", "faithful", "exact"]
    assert prices.n_asked == 1


def test_what_a_start_found_is_told_to_those_who_plan(target: Path, prices: Prices) -> None:
    assert exactness_told(target) is None and exact_rows_told(target, 1) is None
    with Engine(settings(target, "suffix", slots=2, exact_cost_pct=100)) as engine:
        names = ", ".join(found.name for found in engine.chosen.classes)
    told = exactness_told(target)
    assert told is not None and told.startswith(f"class {engine.exact_name} (of {names}) costs ")
    assert told.endswith(" % of the speed here: the default is exact")
    rows = exact_rows_told(target, 2)
    assert rows is not None and rows.by_number[1] == tuple(engine.exact.rows_for(1))
    assert exact_rows_told(target, 3) is None  # there was no room for as many
