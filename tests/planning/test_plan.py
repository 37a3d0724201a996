"""Verdicts, proposals and limits: what is said when it fits, spills or does not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from parlay.errors import LoadError
from parlay.llama.context import Context
from parlay.llama.settings import ContextSettings, ModelSettings
from parlay.parlay import Parlay
from parlay.planning.devices import DRIVER_BYTES, GIB, MemoryPool, pretend
from parlay.planning.limits import Wanted, check_fits, engine_contexts
from parlay.planning.needs import Load
from parlay.planning.plan import Plan, make_plan
from parlay.planning.proposals import propose
from parlay.proposers.draft_model import DraftModel
from tests.planning.shapes import PAIRS, plan_pair, shape_of

RAM = MemoryPool("RAM", "ram", 64 * GIB, 64 * GIB)
TINY_RAM = MemoryPool("RAM", "ram", GIB, GIB)
UNIFIED = MemoryPool("shared", "unified", 12 * GIB, 12 * GIB)
PAIR = PAIRS["7B"]


def load(context_size: int = 4096, gpu_layers: int = -1, role: str = "target") -> Load:
    numbers, file_type = (
        (PAIR.target, PAIR.file_type) if role == "target" else (PAIR.drafter, PAIR.drafter_type)
    )
    context = ContextSettings(context_size, n_outputs=32)
    return Load(role, shape_of(numbers, file_type), ModelSettings(gpu_layers), context)


def plan_for(
    gpu_gb: float, *loads: Load, ram: MemoryPool = RAM, budget: float | None = None
) -> Plan:
    return make_plan(loads or [load()], pretend(gpu_gb, ram), budget_gb=budget)


def test_verdicts() -> None:
    assert plan_for(12).verdict == "fits"
    assert plan_for(4).verdict == "spills"
    assert plan_for(4, ram=TINY_RAM).verdict == "does not fit"


def test_a_budget_is_never_spilled() -> None:
    assert plan_for(12, budget=4).verdict == "does not fit"
    assert plan_for(12, budget=8).verdict == "fits"


def test_without_a_gpu_the_budget_limits_ram() -> None:
    assert make_plan([load()], [RAM], budget_gb=4).verdict == "does not fit"
    assert make_plan([load()], [RAM], budget_gb=8).verdict == "fits"
    assert make_plan([load()], [RAM]).on_gpu == 0


def test_layers_move_to_the_gpu_with_their_cache_the_head_first() -> None:
    none, one, half, all_ = (plan_for(48, load(gpu_layers=n)) for n in (0, 1, 15, -1))
    layers = load().shape.layers
    assert none.on_gpu == 0
    by_what = {(i.what, i.place): i.n_bytes for i in one.items}
    assert by_what["weights", "gpu"] == load().shape.output_bytes
    assert ("cache", "gpu") not in by_what
    by_what = {(i.what, i.place): i.n_bytes for i in half.items}
    assert by_what["cache", "gpu"] == by_what["cache", "ram"]
    assert by_what["weights", "gpu"] == load().shape.output_bytes + 14 * layers[0].n_bytes
    assert half.on_gpu < all_.on_gpu


def gpus(*free_gb: float) -> list[MemoryPool]:
    made = [MemoryPool(f"GPU {i}", "gpu", 24 * GIB, int(gb * GIB)) for i, gb in enumerate(free_gb)]
    return [*made, RAM]


def test_layers_are_shared_out_over_gpus_in_proportion_to_what_is_free() -> None:
    even = make_plan([load()], gpus(4, 4))
    layers = load().shape.layers
    weights = [i.n_bytes for i in even.items if (i.what, i.place) == ("weights", "gpu")]
    # 28 layers and the head are 29 parts: 15 and 14, as llama.cpp counts them.
    assert weights[0] == 15 * layers[0].n_bytes
    assert weights[1] == 13 * layers[0].n_bytes + load().shape.output_bytes
    assert even.verdict == "fits"
    assert even.on_device(0) + even.on_device(1) == even.on_gpu
    uneven = make_plan([load()], gpus(8, 2))
    assert uneven.on_device(0) > 2 * uneven.on_device(1)


def test_each_gpu_must_hold_its_part() -> None:
    """Together there is room, but one is nearly full: its share and a driver are too much."""
    crowded = make_plan([load()], gpus(12, 0.7))
    assert crowded.on_gpu < crowded.gpu_free
    assert crowded.verdict == "does not fit"
    assert [gpu["needed"] > gpu["free"] for gpu in crowded.as_dict()["gpus"]] == [False, True]


def test_the_second_model_goes_where_the_first_left_room() -> None:
    both = make_plan([load(), load(role="drafter")], gpus(4, 12))
    drafter = [i for i in both.items if i.model == "drafter" and i.what == "weights"]
    assert 1 in {i.device for i in drafter if i.place == "gpu"}
    assert both.verdict == "fits"


def test_only_the_devices_that_were_chosen_are_used() -> None:
    def used(*devices: str) -> set[int]:
        chosen = replace(load(), model=ModelSettings(devices=devices))
        plan = make_plan([chosen], gpus(24, 24))
        return {item.device for item in plan.items if item.place == "gpu"}

    assert used() == {0, 1}
    assert used("CUDA1") == {1}
    assert used("CPU") == set()


def test_a_gpu_costs_its_driver_once() -> None:
    both = plan_for(48, load(), load(role="drafter"))
    assert [i.n_bytes for i in both.items if i.what == "driver"] == [DRIVER_BYTES]


def test_memory_shared_with_the_gpu_is_counted_once() -> None:
    ram = MemoryPool("RAM", "ram", 16 * GIB, 14 * GIB)
    plan = make_plan([load()], [UNIFIED, ram])
    assert plan.ram_free == 14 * GIB - plan.on_gpu


def test_proposals_fit_and_the_context_is_the_longest_that_does() -> None:
    loads = [load(32768), load(32768, role="drafter")]

    def replan(given: object) -> Plan:
        return make_plan(given, pretend(6.9, TINY_RAM))  # type: ignore[arg-type]

    plan = replan(loads)
    assert plan.verdict == "does not fit"
    found = {p.option.split()[0]: p for p in propose(plan, replan)}
    assert set(found) == {"--set", "--context-size", "--draft"}
    assert all(p.plan.verdict == "fits" for p in found.values())
    size = int(found["--context-size"].option.split()[1])
    longer = [load(size + 256), load(size + 256, role="drafter")]
    assert replan(longer).verdict != "fits"


def test_fewer_layers_are_proposed_where_ram_takes_the_rest() -> None:
    def replan(given: object) -> Plan:
        return make_plan(given, pretend(4, RAM))  # type: ignore[arg-type]

    (proposal,) = propose(replan([load(2048)]), replan)
    n = int(proposal.option.split()[1])
    assert replan([load(2048, gpu_layers=n)]).verdict == "fits"
    assert replan([load(2048, gpu_layers=n + 1)]).verdict != "fits"


def test_nothing_is_proposed_where_it_fits() -> None:
    assert propose(plan_for(48), lambda _loads: pytest.fail("planned again")) == []


def test_the_issue_s_27b_fits_at_24_gb_and_not_at_12() -> None:
    assert plan_pair(PAIRS["27B"], 24, context_size=4096).verdict == "fits"
    assert plan_pair(PAIRS["27B"], 12, context_size=4096).verdict == "does not fit"


@pytest.mark.parametrize(("label", "n_params"), [("7B", 7.6), ("14B", 14.8), ("70B", 70.6)])
def test_public_shapes_have_the_parameters_their_cards_give(label: str, n_params: float) -> None:
    shape = shape_of(PAIRS[label].target, "Q8_0")
    assert shape.weight_bytes / 8.5 * 8 / 1e9 == pytest.approx(n_params, rel=0.02)


def test_the_public_27b_and_31b_have_the_parameters_their_cards_give() -> None:
    for label, n_params in (("27B", 26.9), ("31B", 30.7)):
        shape = shape_of(PAIRS[label].target, "Q8_0")
        assert shape.weight_bytes / 8.5 * 8 / 1e9 == pytest.approx(n_params, rel=0.03)


def test_check_fits_refuses_before_loading(tiny_llama: Path, tiny_drafter: Path) -> None:
    context = ContextSettings(16384)
    target = Wanted(tiny_llama, ModelSettings(), context)
    drafter = Wanted(tiny_drafter, ModelSettings(), context)
    assert check_fits(target, [drafter], budget_gb=1).verdict == "fits"
    with pytest.raises(LoadError, match=r"llama.gguf and drafter.gguf need .* GB; try --context"):
        check_fits(target, [drafter], budget_gb=0.01)
    with pytest.raises(LoadError, match="use a smaller model"):
        check_fits(target, budget_gb=0.0001)


def test_contexts_are_planned_as_the_engine_makes_them(
    tiny_llama: Path, tiny_drafter: Path
) -> None:
    shared = ContextSettings(512, 2, threads=1)
    planned, own = engine_contexts(shared, 4, ("auto", "auto"))
    assert planned.same_bits
    assert not own.same_bits
    with Parlay(
        tiny_llama, draft=str(tiny_drafter), window=4, context_size=512, slots=2, threads=1
    ) as parlay:
        made = parlay.engine.target.settings
        drafter = parlay.engine.drafts.proposers["model"]
        assert isinstance(drafter, DraftModel)
        assert isinstance(drafter._model, Context)
        assert (made.n_outputs, made.n_batch) == (planned.n_outputs, planned.n_batch)
        assert drafter._model.settings.n_outputs == own.n_outputs
        assert (made.same_bits, drafter._model.settings.same_bits) == (True, False)
