"""How many snapshots an engine asks for, and how much RAM it gives to earlier prompts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from parlay.control.cost import CostTable, Curve
from parlay.llama.context import Context
from parlay.llama.settings import ContextSettings
from parlay.llama.undo import Rollback
from parlay.planning import limits
from parlay.planning.devices import MemoryPool
from parlay.runtime.engine_settings import EngineSettings
from parlay.runtime.snapshots import choose_snapshots, remember_window, room_for_prompts
from tests import tiny_models


@pytest.fixture(autouse=True)
def own_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARLAY_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def hybrid(tmp_path: Path) -> Path:
    return tiny_models.write_qwen35(tmp_path / "hybrid.gguf")


def wanted(path: Path, **changed: Any) -> EngineSettings:
    context = ContextSettings(512, threads=1, prompt_cache_bytes=1 << 26)
    return replace(EngineSettings(path, ("suffix",), context=context), **changed)


BOUNDED = cast(Context, SimpleNamespace(rollback=Rollback.BOUNDED))


def prices(best: int, *, stable: bool = True) -> CostTable:
    """A table on which this window is the fastest."""
    seconds = {n: 0.010 if n <= best + 1 else 0.5 for n in range(1, 40)}
    return CostTable({(1, 1): Curve(seconds, {})}, stable=stable)


def test_as_many_as_cost_plain_passes_next_to_nothing(hybrid: Path) -> None:
    assert choose_snapshots(wanted(hybrid)) == 7
    assert choose_snapshots(wanted(hybrid, window=3)) == 3
    assert choose_snapshots(wanted(hybrid, snapshots=12)) == 12


def test_none_where_nothing_is_drafted_or_nothing_can_be_used(hybrid: Path, tmp_path: Path) -> None:
    assert choose_snapshots(wanted(hybrid, draft=())) == 0
    assert choose_snapshots(wanted(hybrid, window=0)) == 0
    assert choose_snapshots(wanted(tiny_models.write_mamba(tmp_path / "mamba.gguf"))) == 0


def test_no_more_than_windows_that_paid_at_the_last_load(hybrid: Path) -> None:
    settings = wanted(hybrid)
    remember_window(settings, prices(2), BOUNDED)
    assert choose_snapshots(settings) == 2
    assert choose_snapshots(replace(settings, measure_again=True)) == 7
    assert choose_snapshots(replace(settings, max_window=17)) == 7  # other windows were priced


def test_prices_of_a_busy_machine_are_not_believed(hybrid: Path) -> None:
    settings = wanted(hybrid)
    remember_window(settings, prices(2, stable=False), BOUNDED)
    assert choose_snapshots(settings) == 7


def test_prompts_get_what_was_asked_for_or_half_of_what_is_left(
    hybrid: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert room_for_prompts(wanted(hybrid)) == 1 << 26
    monkeypatch.setattr(
        limits, "usable_pools", lambda: [MemoryPool("RAM", "ram", 1 << 26, 1 << 26)]
    )
    assert 0 < room_for_prompts(wanted(hybrid)) < 1 << 25
    none = replace(wanted(hybrid).context, prompt_cache_bytes=0)
    assert room_for_prompts(wanted(hybrid, context=none)) == 0
