"""What is found for `auto`: as much as fits with a margin, experts leaving the GPU first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from parlay.llama.settings import ContextSettings, ModelSettings, RopeSettings
from parlay.planning.devices import GIB, MemoryPool
from parlay.planning.fit import Fit, fit, longest, margin, roomy
from parlay.planning.needs import Load
from parlay.planning.plan import Plan, make_plan
from parlay.planning.shape import read_shape
from tests.planning import headers
from tests.planning.shapes import PAIRS, shape_of

RAM = MemoryPool("RAM", "ram", 64 * GIB, 48 * GIB)


def dense(context: ContextSettings | None = None) -> Load:
    pair = PAIRS["14B"]
    shape = shape_of(pair.target, pair.file_type)
    return Load("target", shape, ModelSettings(), context or ContextSettings(4096, n_outputs=32))


def mixture(tmp_path: Path) -> Load:
    shape = read_shape(headers.write_experts(tmp_path / "mixture.gguf", n_layers=48))
    return Load("target", shape, ModelSettings(), ContextSettings(4096, n_outputs=32))


def found(
    load: Load, gpu_gb: float | None, *, context: bool = True, layers: bool = True
) -> Fit | Plan:
    pools = [RAM]
    if gpu_gb is not None:
        size = int(gpu_gb * GIB)
        pools = [MemoryPool("GPU", "gpu", size, size), RAM]

    def replan(loads: Sequence[Load]) -> Plan:
        return make_plan(loads, pools)

    return fit([load], replan, context=context, layers=layers)


def test_a_large_gpu_takes_the_whole_context_and_every_layer() -> None:
    fitted = found(dense(), 80)
    assert isinstance(fitted, Fit)
    assert (fitted.context_size, fitted.gpu_layers, fitted.n_cpu_moe) == (32768, -1, 0)
    assert "all of 41 layers" in fitted.line


def test_a_smaller_gpu_takes_every_layer_and_the_context_that_is_left() -> None:
    fitted = found(dense(), 12)
    assert isinstance(fitted, Fit)
    assert fitted.gpu_layers == -1
    assert 4096 <= fitted.context_size < 32768
    assert fitted.context_size % 256 == 0


def test_the_longest_context_is_the_longest_one() -> None:
    fitted = found(dense(), 12)
    assert isinstance(fitted, Fit)
    more = ContextSettings(fitted.context_size + 256, n_outputs=32)
    plan = make_plan([dense(more)], fitted.plan.pools)
    assert roomy(fitted.plan)
    assert not roomy(plan)


def test_layers_leave_a_gpu_that_cannot_hold_all() -> None:
    fitted = found(dense(), 6)
    assert isinstance(fitted, Fit)
    assert 0 < fitted.gpu_layers < 41
    assert fitted.context_size >= 4096


def test_experts_leave_the_gpu_before_layers(tmp_path: Path) -> None:
    load = mixture(tmp_path)
    fitted = found(load, 16)
    assert isinstance(fitted, Fit)
    assert fitted.gpu_layers == -1
    assert 0 < fitted.n_cpu_moe < 48
    assert f"experts of {fitted.n_cpu_moe} layers in RAM" in fitted.line
    fewer = ModelSettings(n_cpu_moe=fitted.n_cpu_moe - 1)
    plan = make_plan([Load("target", load.shape, fewer, load.context)], fitted.plan.pools)
    assert not roomy(plan)


def test_layers_follow_where_experts_were_not_enough(tmp_path: Path) -> None:
    fitted = found(mixture(tmp_path), 2)
    assert isinstance(fitted, Fit)
    assert fitted.n_cpu_moe == -1
    assert 0 <= fitted.gpu_layers < 49


def test_what_was_given_stays() -> None:
    context_only = found(dense(), 12, layers=False)
    layers_only = found(dense(ContextSettings(16384, n_outputs=32)), 10, context=False)
    assert isinstance(context_only, Fit)
    assert isinstance(layers_only, Fit)
    assert context_only.gpu_layers == -1
    assert layers_only.context_size == 16384
    assert 0 < layers_only.gpu_layers < 41


def test_what_nothing_can_hold_comes_back_as_it_does_not_fit() -> None:
    assert isinstance(found(dense(), 6, layers=False), Plan)


def test_ram_is_left_for_others() -> None:
    fitted = found(dense(ContextSettings(4096, 8, n_outputs=136)), None)
    assert isinstance(fitted, Fit)
    assert fitted.plan.in_ram + 0.1 * RAM.total < RAM.free


def test_the_margin_is_what_plans_err_by() -> None:
    fitted = found(dense(), 12)
    assert isinstance(fitted, Fit)
    plan = fitted.plan
    assert 0.01 * plan.on_gpu < margin(plan, "gpu") < 0.02 * plan.on_gpu
    assert plan.on_gpu + margin(plan, "gpu") <= plan.gpu_free


@pytest.mark.parametrize(("rope", "size"), [({}, 32768), ({"scale": 4.0}, 131072)])
def test_a_stretched_model_is_longer(rope: dict[str, float], size: int) -> None:
    context = ContextSettings(4096, rope=RopeSettings(**rope))  # type: ignore[arg-type]
    assert longest(dense(context)) == size
