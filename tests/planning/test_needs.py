"""Plans against what llama.cpp really allocates: within 5 %, and mostly to the byte."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parlay.errors import BadRequest
from parlay.llama.cpu import repacked_types
from parlay.llama.settings import Adapter, ContextSettings, ModelSettings
from parlay.planning.limits import Wanted, load_list
from parlay.planning.needs import Load, check_cache_types, needs
from parlay.planning.shape import read_shape
from tests import tiny_drafters, tiny_models
from tests.planning import headers
from tests.planning.dry_run import MAPPED, allocated, simulated
from tests.tiny_adapters import write_lora

_MIB = 1 << 20
# llama.cpp rounds most sizes to a hundredth of a MiB.
_ROUNDING = 0.011


def planned(
    path: Path, context: ContextSettings, settings: ModelSettings = MAPPED
) -> dict[str, float]:
    """MiB by what, on a machine without a GPU."""
    (load,) = load_list(Wanted(path, settings, context))
    found: dict[str, float] = {}
    for item in needs(load, repacked=repacked_types()):
        found[item.what] = found.get(item.what, 0.0) + item.n_bytes / _MIB
    return found


def agree(plan: dict[str, float], real: dict[str, float]) -> None:
    weights = plan["weights"] + plan.get("repacked weights", 0.0)
    cache = plan.get("cache", 0.0) + plan.get("state", 0.0)
    real_cache = real.get("KV", 0.0) + real.get("RS", 0.0)
    assert weights == pytest.approx(real["model"], rel=0.05, abs=_ROUNDING)
    assert cache == pytest.approx(real_cache, rel=0.05, abs=_ROUNDING)
    assert plan["compute"] == pytest.approx(real["compute"], rel=0.05)
    total = weights + cache + plan["compute"]
    assert total == pytest.approx(
        real["model"] + real_cache + real["compute"], rel=0.05, abs=3 * _ROUNDING
    )


CONTEXTS = (
    ContextSettings(512, threads=1),
    ContextSettings(4096, threads=1),
    ContextSettings(16384, threads=1),
    ContextSettings(1024, 4, threads=1),
    ContextSettings(2048, n_batch=128, n_outputs=17, threads=1),
    ContextSettings(2048, threads=1, flash_attention="off"),
    ContextSettings(2048, threads=1, n_ubatch=64, n_outputs=34),
)


@pytest.mark.parametrize("context", CONTEXTS, ids=str)
@pytest.mark.parametrize(
    "fixture", ["tiny_llama", "tiny_wide", "tiny_gemma3", "tiny_mamba", "tiny_lfm2"]
)
def test_a_plan_is_what_a_tiny_model_takes(
    request: pytest.FixtureRequest, fixture: str, context: ContextSettings
) -> None:
    path: Path = request.getfixturevalue(fixture)
    agree(planned(path, context), allocated(path, context))


@pytest.mark.parametrize(
    "context",
    [
        ContextSettings(4096, threads=1),
        ContextSettings(4096, 2, threads=1, n_snapshots=3),
        ContextSettings(2048, threads=1, flash_attention="off"),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "name",
    ["qwen35", "qwen35moe", "nemotron_h", "qwen3moe", "gpt_oss", "gemma4", "deepseek2"],
)
def test_a_plan_of_every_kind_is_what_it_takes(
    tmp_path: Path, name: str, context: ContextSettings
) -> None:
    """Of some the passes are only guessed: in a tiny model they are all there is."""
    path = tiny_models.WRITERS[name](tmp_path / f"{name}.gguf")
    plan, real = planned(path, context), allocated(path, context)
    # One copy of the state beside the snapshots is Parlay's own.
    n = context.n_snapshots
    cache = plan["cache"] + plan.get("state", 0.0) + plan.get("snapshots", 0.0) * n / (n + 1)
    real_cache = real.get("KV", 0.0) + real.get("RS", 0.0)
    weights = plan["weights"] + plan.get("repacked weights", 0.0)
    assert weights == pytest.approx(real["model"], rel=0.05, abs=_ROUNDING)
    assert cache == pytest.approx(real_cache, rel=0.05, abs=2 * _ROUNDING)
    assert 0.97 < plan["compute"] / real["compute"] < 1.1
    total = real["model"] + real_cache + real["compute"]
    assert weights + cache + plan["compute"] == pytest.approx(total, rel=0.05)


@pytest.mark.parametrize("size", [512, 16384])
def test_quantised_caches_take_what_is_planned(tiny_wide: Path, size: int) -> None:
    context = ContextSettings(size, threads=1, cache_type_k="q8_0", cache_type_v="q8_0")
    agree(planned(tiny_wide, context), allocated(tiny_wide, context))


def test_adapters_take_what_is_planned(tmp_path: Path) -> None:
    path = tiny_models.write_llama(tmp_path / "llama.gguf", n_embd=256, n_ff=1024)
    lora = write_lora(tmp_path / "lora.gguf", path, rank=16, name="weight")
    context, settings = ContextSettings(512, threads=1), replace(MAPPED, adapters=(Adapter(lora),))
    plan, real = planned(path, context, settings), allocated(path, context, settings)
    agree(plan, real)
    assert plan["adapters"] == pytest.approx(real["LoRA"], rel=0.05, abs=_ROUNDING)


def test_overridden_tensors_are_planned_where_they_go(tmp_path: Path) -> None:
    path = headers.write_experts(tmp_path / "mixture.gguf", n_layers=4)
    shape = read_shape(path)
    experts = [w.n_bytes for w in shape.layers[0].weights if "exps" in w.name]
    load = Load("target", shape, ModelSettings(), ContextSettings(512))
    found = []
    for settings in (ModelSettings(), ModelSettings(n_cpu_moe=3), ModelSettings(n_cpu_moe=-1)):
        items = needs(replace(load, model=settings), gpus=(1,))
        found.append({(i.place, i.what): i.n_bytes for i in items})
    on_gpu, three, every = (by["gpu", "weights"] for by in found)
    assert (on_gpu - three, on_gpu - every) == (3 * sum(experts), 4 * sum(experts))
    assert found[1]["ram", "weights"] - found[0]["ram", "weights"] == 3 * sum(experts)
    # A wide pass copies experts to the GPU one tensor after another.
    assert max(experts) < found[1]["gpu", "compute"] < found[0]["gpu", "compute"] + 3 * max(experts)


def test_a_head_is_planned_without_what_is_loaded_of_its_file(tmp_path: Path) -> None:
    target = tiny_drafters.write_nextn(tmp_path / "target.gguf")
    lone = tiny_drafters.write_nextn(tmp_path / "lone.gguf", only_head=True)
    context = ContextSettings(512, threads=1)
    _, own = load_list(Wanted(target, MAPPED, context), [Wanted(target, MAPPED, context)])
    _, apart = load_list(Wanted(target, MAPPED, context), [Wanted(lone, MAPPED, context)])
    assert own.shape.n_layers == apart.shape.n_layers == 1
    assert own.shape.weight_bytes == own.shape.layers[0].n_bytes == apart.shape.layers[0].n_bytes
    assert apart.shape.input_bytes > 0
    cache = sum(i.n_bytes for i in needs(own) if i.what == "cache")
    assert cache == sum(i.n_bytes for i in needs(apart) if i.what == "cache") > 0


def test_an_assistant_is_planned_with_the_cache_of_its_target_alone(tmp_path: Path) -> None:
    target = tiny_models.write_gemma4(tmp_path / "target.gguf")
    assistant = tiny_drafters.write_assistant(tmp_path / "assistant.gguf")
    context = ContextSettings(512, threads=1)
    loads = load_list(Wanted(target, MAPPED, context), [Wanted(assistant, MAPPED, context)])
    caches = [sum(i.n_bytes for i in needs(load) if i.what == "cache") for load in loads]
    assert caches[0] > 0
    assert caches[1] == 0
    assert loads[1].shape.weight_bytes == pytest.approx(assistant.stat().st_size, rel=0.2)


def test_shares_say_which_gpu_holds_what(tmp_path: Path) -> None:
    path = _write_large(tmp_path / "8B.gguf", "8B", "Q4_0")
    load = Load("target", read_shape(path), ModelSettings(), ContextSettings(512))

    def weights(settings: ModelSettings) -> dict[int, int]:
        items = needs(replace(load, model=settings), gpus=(1, 1))
        return {i.device: i.n_bytes for i in items if (i.place, i.what) == ("gpu", "weights")}

    split = weights(ModelSettings(tensor_split=(3, 1)))
    assert split[0] / split[1] == pytest.approx(2.5, rel=0.1)  # the head is in the last part
    assert set(weights(ModelSettings(split_mode="none", main_gpu=1))) == {1}
    rows = weights(ModelSettings(split_mode="row", tensor_split=(3, 1)))
    assert rows[0] == pytest.approx(3 * rows[1], rel=0.001)


def test_a_split_model_is_planned_whole(tiny_llama: Path, tmp_path: Path) -> None:
    first = tiny_models.write_llama(tmp_path / "split.gguf", max_tensors=6)
    assert first.name.endswith("-00001-of-00004.gguf")
    context = ContextSettings(512)
    assert planned(first, context) == planned(tiny_llama, context)


@pytest.mark.weights
@pytest.mark.parametrize("cache_type", ["auto", "f16", "q8_0"])
@pytest.mark.parametrize("size", [512, 4096, 16384])
def test_a_plan_is_what_the_default_model_takes(smollm2: Path, size: int, cache_type: str) -> None:
    context = ContextSettings(size, threads=1, cache_type_k=cache_type, cache_type_v=cache_type)
    agree(planned(smollm2, context), allocated(smollm2, context))


@pytest.mark.weights
@pytest.mark.parametrize("ftype", ["q4_0", "q8_0", "q4_k_m"])
@pytest.mark.parametrize(
    "settings",
    [MAPPED, ModelSettings(), ModelSettings(mmap=False)],
    ids=["mapped", "large", "read"],
)
def test_rearranged_copies_are_counted(
    smollm2_as: Callable[[str], Path], ftype: str, settings: ModelSettings
) -> None:
    path, context = smollm2_as(ftype), ContextSettings(512, threads=1)
    agree(planned(path, context, settings), allocated(path, context, settings))


NUMBERS = ("n_embd", "n_layers", "n_heads", "n_kv_heads", "head_size", "n_ff", "n_vocab")
LARGE = {
    "8B": ("llama", (4096, 32, 32, 8, 128, 14336, 128256)),
    "14B": ("qwen3", (5120, 40, 40, 8, 128, 17408, 151936)),
    "70B": ("llama", (8192, 80, 64, 8, 128, 28672, 128256)),
}


@pytest.mark.parametrize(
    "context",
    [
        ContextSettings(4096, n_outputs=17),
        ContextSettings(16384, 2, n_outputs=34),
        ContextSettings(4096, cache_type_k="q8_0", cache_type_v="q8_0"),
        ContextSettings(4096, flash_attention="off"),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", [*LARGE, "27B"])
def test_a_plan_is_what_llama_cpp_foresees_for_large_models(
    tmp_path: Path, name: str, context: ContextSettings
) -> None:
    if name == "27B" and context.flash_attention == "off":
        pytest.skip("its gated attention is followed with flash attention only")
    path = _write_large(tmp_path / f"{name}.gguf", name)
    plan, real = planned(path, context), simulated(path, context)
    assert plan["cache"] + plan.get("state", 0) == pytest.approx(real["cache"], abs=0.1)
    assert plan["compute"] == pytest.approx(real["compute"], rel=0.05)


def _write_large(path: Path, name: str, kind: str = "Q8_0") -> Path:
    if name == "27B":
        return headers.write_qwen35(path, kind=kind)
    architecture, numbers = LARGE[name]
    named: dict[str, Any] = dict(zip(NUMBERS, numbers, strict=True))
    return headers.write_dense(path, architecture, kind=kind, **named)


@pytest.mark.parametrize("write", [headers.write_mla, headers.write_experts])
@pytest.mark.parametrize("context", [ContextSettings(4096), ContextSettings(16384, 2)], ids=str)
def test_other_architectures_are_counted_where_they_can_be_and_never_short(
    tmp_path: Path, write: Callable[[Path], Path], context: ContextSettings
) -> None:
    path = write(tmp_path / "other.gguf")
    plan, real = planned(path, context), simulated(path, context)
    assert not read_shape(path).followed
    assert plan["cache"] == pytest.approx(real["cache"], abs=0.1)
    assert 0.99 < plan["compute"] / real["compute"] < 1.05


# What llama.cpp's log said on an H200 (CUDA, all layers but the last line's): MiB of weights, cache
# and state, compute buffer on the GPU, and of the compute buffer in RAM.
ON_CUDA = [
    ("8B", ContextSettings(4096, n_outputs=32), 999, (4026.83, 512.0, 112.01, 20.01)),
    ("8B", ContextSettings(16384, 2, n_outputs=34), 999, (4026.83, 4096.0, 124.01, 32.01)),
    ("14B", ContextSettings(4096, n_outputs=32), 999, (7506.43, 640.0, 136.01, 24.01)),
    ("27B", ContextSettings(4096, n_outputs=32), 999, (16809.16, 405.62, 126.02, 24.02)),
    ("27B", ContextSettings(16384, 2, n_outputs=34), 999, (16809.16, 2347.25, 138.02, 36.02)),
    ("8B", ContextSettings(4096, n_outputs=32), 20, (2505.42, 304.0, 124.5, 20.01)),
]
KINDS = {"8B": "Q4_0", "14B": "Q4_K", "27B": "Q5_K"}


@pytest.mark.parametrize(("name", "context", "layers", "real"), ON_CUDA, ids=str)
def test_a_plan_is_what_a_gpu_took(
    tmp_path: Path,
    name: str,
    context: ContextSettings,
    layers: int,
    real: tuple[float, float, float, float],
) -> None:
    path = _write_large(tmp_path / "large.gguf", name, KINDS[name])
    load = Load("target", read_shape(path), ModelSettings(layers), context)
    found = {(i.place, i.what): i.n_bytes / _MIB for i in needs(load, gpus=(1,))}
    weights, cache, compute, host = real
    assert found["gpu", "weights"] == pytest.approx(weights, abs=0.1)
    assert found["gpu", "cache"] + found.get(("gpu", "state"), 0) == pytest.approx(cache, abs=0.1)
    assert found["gpu", "compute"] == pytest.approx(compute, rel=0.001)
    assert found["ram", "compute"] == pytest.approx(host, abs=0.1)
    del found["gpu", "recordings"]  # which it has none of yet
    total = sum(n for (place, _), n in found.items() if place == "gpu")
    assert total == pytest.approx(weights + cache + compute, rel=0.01)


def test_a_cache_type_that_cannot_hold_a_head_is_refused(tiny_llama: Path) -> None:
    shape = read_shape(tiny_llama)
    context = ContextSettings(512, cache_type_k="q8_0")
    with pytest.raises(BadRequest, match=r"K cache of type q8_0 .* heads of 16"):
        check_cache_types(shape, context)


def test_a_quantised_v_cache_needs_flash_attention(tiny_wide: Path) -> None:
    context = ContextSettings(512, cache_type_v="q8_0", flash_attention="off")
    with pytest.raises(BadRequest, match="flash attention"):
        check_cache_types(read_shape(tiny_wide), context)
