"""Snapshots and rows of a pass that an engine asks for, and what it gives to earlier prompts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from parlay.engine import start as snapshots
from parlay.engine.settings import EngineSettings
from parlay.engine.start import choose_rows, choose_snapshots, room_for_prompts
from parlay.llama import library
from parlay.llama.settings import ContextSettings
from parlay.planning import limits
from parlay.planning.devices import MemoryPool
from tests import tiny_models

pytestmark = pytest.mark.usefixtures("own_cache_folder")


@pytest.fixture
def hybrid(tmp_path: Path) -> Path:
    return tiny_models.write_qwen35(tmp_path / "hybrid.gguf")


def wanted(path: Path, **changed: Any) -> EngineSettings:
    context = ContextSettings(512, threads=1, prompt_cache_bytes=1 << 26)
    return replace(EngineSettings(path, ("suffix",), context=context), **changed)


def test_as_many_as_cost_plain_passes_next_to_nothing(hybrid: Path) -> None:
    assert choose_snapshots(wanted(hybrid)) == 7
    assert choose_snapshots(wanted(hybrid, window=3)) == 3
    assert choose_snapshots(wanted(hybrid, snapshots=12)) == 12


def test_none_where_nothing_is_drafted_or_nothing_can_be_used(hybrid: Path, tmp_path: Path) -> None:
    assert choose_snapshots(wanted(hybrid, draft=())) == 0
    assert choose_snapshots(wanted(hybrid, window=0)) == 0
    assert choose_snapshots(wanted(tiny_models.write_mamba(tmp_path / "mamba.gguf"))) == 0


def test_on_a_gpu_few_for_what_is_found_in_the_text_and_many_for_a_draft_model(
    hybrid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes a part of every pass there, of plain ones too."""
    gpu = SimpleNamespace(kind="gpu", name="CUDA0", description="", free_bytes=1 << 34)
    monkeypatch.setattr(library, "devices", lambda: [gpu])
    drafter = tiny_models.write_llama(tmp_path / "drafter.gguf")
    assert snapshots.useful_snapshots(wanted(hybrid)) == 1
    assert snapshots.useful_snapshots(wanted(hybrid, draft=("suffix", str(drafter)))) == 7
    assert snapshots.useful_snapshots(wanted(hybrid, window=5)) == 5


@pytest.mark.parametrize(("free", "n_rows"), [(1 << 34, 1024), (1 << 20, 512)])
def test_on_a_gpu_with_room_passes_are_wide_where_nobody_said_how_wide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, n_rows: int
) -> None:
    target = tiny_models.write_llama(tmp_path / "target.gguf")
    assert choose_rows(wanted(target, widens=True), 0) == 512
    gpu = SimpleNamespace(kind="gpu", name="CUDA0", description="", free_bytes=free)
    monkeypatch.setattr(library, "devices", lambda: [gpu])
    pools = [MemoryPool("GPU", "gpu", free, free), MemoryPool("RAM", "ram", 1 << 36, 1 << 36)]
    monkeypatch.setattr(limits, "usable_pools", lambda: pools)
    assert choose_rows(wanted(target, widens=True), 0) == n_rows
    assert choose_rows(wanted(target), 0) == 512


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
