"""Wide passes: on a GPU that holds all of the target and has room to spare, nowhere else."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from parlay.llama.settings import ContextSettings, ModelSettings
from parlay.planning.devices import GIB, MemoryPool, pretend
from parlay.planning.needs import Load
from parlay.planning.plan import make_plan
from parlay.planning.room import WIDE_ROWS, with_wide_passes
from tests.planning.shapes import PAIRS, shape_of

RAM = MemoryPool("RAM", "ram", 64 * GIB, 64 * GIB)
PAIR = PAIRS["7B"]
TARGET = Load(
    "target", shape_of(PAIR.target, PAIR.file_type), ModelSettings(), ContextSettings(n_outputs=32)
)
DRAFTER = replace(TARGET, role="drafter", shape=shape_of(PAIR.drafter, PAIR.drafter_type))


def rows(pools: list[MemoryPool], target: Load = TARGET) -> tuple[int, int]:
    """Of the target's passes and the drafter's."""
    found = with_wide_passes([target, DRAFTER], partial(make_plan, pools=pools))
    return found[0].context.rows_at_once, found[1].context.rows_at_once


def taken() -> float:
    """Gigabytes of the usual plan."""
    return make_plan([TARGET, DRAFTER], pretend(80, RAM)).on_gpu / GIB


def test_on_a_gpu_with_room_the_target_alone_has_them() -> None:
    assert rows(pretend(80, RAM)) == (WIDE_ROWS, 512)


@pytest.mark.parametrize("left", [0.0, 0.1])
def test_where_they_would_take_most_of_what_is_left_passes_stay_as_they_are(left: float) -> None:
    assert rows(pretend(taken() + left, RAM)) == (512, 512)


def test_without_a_gpu_or_with_layers_or_tensors_in_ram_passes_stay_as_they_are() -> None:
    assert rows([RAM]) == (512, 512)
    some = replace(TARGET, model=ModelSettings(gpu_layers=8))
    experts = replace(TARGET, model=ModelSettings(n_cpu_moe=2))
    assert rows(pretend(80, RAM), some) == rows(pretend(80, RAM), experts) == (512, 512)


def test_a_batch_that_is_wider_stays() -> None:
    wider = replace(TARGET, context=replace(TARGET.context, n_batch=4096))
    assert rows(pretend(80, RAM), wider) == (4096, 512)
