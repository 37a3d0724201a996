"""A model's cost table for many sequences: measured, kept if it can be believed, recalled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parlay.control.prices.cost import CostTable
from parlay.errors import LoadError
from parlay.llama.context import Context
from parlay.llama.settings import ContextSettings
from parlay.timing import batch_table as module
from parlay.timing.batch_table import WantedTable, batch_table, measure_table

pytestmark = pytest.mark.usefixtures("own_cache_folder")


@pytest.fixture
def wanted(tiny_llama: Path, tiny_drafter: Path) -> WantedTable:
    return WantedTable(tiny_llama, tiny_drafter, 2, (16,), n_times=1, budget_s=600.0, threads=1)


def test_a_target_and_its_drafter_are_opened_measured_and_closed(wanted: WantedTable) -> None:
    told: list[str] = []
    found = measure_table(wanted, told.append)
    assert found.plain_s(16, 1) > 0 and found.plain_s(16, 2) > 0
    assert found.drafter is not None and found.drafter.step_s() > 0
    assert told[0].startswith("2 sequences at most")


@pytest.mark.parametrize("stable", [True, False])
def test_what_can_be_believed_is_measured_once(
    wanted: WantedTable, stable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = measure_table(replace(wanted, drafter=None))
    n_measured = 0

    def measure(*_: Any) -> CostTable:
        nonlocal n_measured
        n_measured += 1
        one.stable = stable
        return one

    monkeypatch.setattr(module, "measure_table", measure)
    for _ in range(3):
        batch_table(wanted)
    assert n_measured == (1 if stable else 3)
    batch_table(replace(wanted, contexts=(16, 32)))  # another question
    assert n_measured == (2 if stable else 4)


def test_where_memory_is_short_fewer_sequences_are_measured_rather_than_none(
    wanted: WantedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Small(Context):
        def __init__(self, model: Any, settings: ContextSettings) -> None:
            if settings.n_sequences > 2:
                raise LoadError("no room")
            super().__init__(model, settings)

    monkeypatch.setattr(module, "Context", Small)
    told: list[str] = []
    measure_table(replace(wanted, max_sequences=8), told.append)
    assert told[0].startswith("2 sequences at most")
