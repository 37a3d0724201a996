"""Snapshots of a recurrent state: what they take, and how many there is room for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from parlay.llama.settings import ContextSettings
from parlay.planning.devices import MemoryPool
from parlay.planning.limits import Wanted, load_list
from parlay.planning.needs import Load
from parlay.planning.plan import Plan, make_plan
from parlay.planning.room import with_snapshots
from tests import tiny_models
from tests.planning.dry_run import MAPPED, allocated
from tests.planning.test_needs import planned


@pytest.mark.parametrize("n_sequences", [1, 3])
@pytest.mark.parametrize("name", ["qwen35", "lfm2", "nemotron_h", "mamba", "llama"])
def test_a_plan_counts_snapshots_as_llama_cpp_allocates_them(
    name: str, n_sequences: int, tmp_path: Path
) -> None:
    path = tiny_models.WRITERS[name](tmp_path / "model.gguf")
    context = ContextSettings(512, n_sequences, n_batch=128, n_snapshots=8, threads=1)
    plan, real = planned(path, context), allocated(path, context)
    copy = plan.get("snapshots", 0.0) / 9  # made later, when a prompt is read
    states = plan.get("state", 0.0) + plan.get("snapshots", 0.0) - copy
    assert states == pytest.approx(real.get("RS", 0.0), rel=0.01, abs=0.011)
    assert plan["compute"] == pytest.approx(real["compute"], rel=0.3)


def _loads(path: Path, n_sequences: int = 1) -> list[Load]:
    context = ContextSettings(512, n_sequences, n_batch=128, threads=1)
    return load_list(Wanted(path, MAPPED, context))


def _chosen(path: Path, left: float, n_sequences: int = 1, widest: int = 16) -> int:
    """How many, where so many snapshots would find room beside all else."""
    loads = _loads(path, n_sequences)

    def plan(tried: Sequence[Load], free: int = 1 << 40) -> Plan:
        return make_plan(tried, [MemoryPool("RAM", "ram", free, free)])

    one = with_snapshots(loads, 1, plan)
    state = sum(i.n_bytes for i in plan(one).items if i.what == "snapshots") / 2
    taken = plan(loads).in_ram
    free = int(taken + left * state)
    found = with_snapshots(loads, widest, lambda tried: plan(tried, free))
    return found[0].context.n_snapshots


def test_as_many_as_a_draft_may_have_tokens_where_there_is_room(tmp_path: Path) -> None:
    path = tiny_models.write_qwen35(tmp_path / "model.gguf")
    assert _chosen(path, left=1000) == 16
    assert _chosen(path, left=1000, widest=3) == 3


def test_half_of_what_is_left_stays_free(tmp_path: Path) -> None:
    path = tiny_models.write_qwen35(tmp_path / "model.gguf")
    n = _chosen(path, left=20)
    assert 4 <= n <= 9
    assert _chosen(path, left=20, n_sequences=2) == n  # the unit is a state of each sequence
    assert _chosen(path, left=1) == 0


@pytest.mark.parametrize("name", ["mamba", "llama"])
def test_none_where_llama_cpp_could_not_use_them(name: str, tmp_path: Path) -> None:
    path = tiny_models.WRITERS[name](tmp_path / "model.gguf")
    loads = _loads(path)
    plan = make_plan(loads, [MemoryPool("RAM", "ram", 1 << 40, 1 << 40)])
    assert with_snapshots(loads, 16, lambda _: plan)[0].context.n_snapshots == 0
