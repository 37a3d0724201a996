"""Overrides and splits: what llama.cpp would ignore or abort on is refused before a load."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from parlay.decoding.span import Span
from parlay.errors import BadRequest
from parlay.llama.context import Context
from parlay.llama.header import read_parts
from parlay.llama.model import Model
from parlay.llama.placement import check_overrides, check_split, place_of
from parlay.llama.settings import (
    ContextSettings,
    ModelSettings,
    Override,
    RopeSettings,
)
from tests.planning import headers


def test_an_override_that_matches_nothing_is_refused(tiny_llama: Path) -> None:
    settings = ModelSettings(overrides=(Override("exps", "CPU"),))
    with pytest.raises(BadRequest, match=r"'exps' matches no tensor of llama\.gguf"):
        Model(tiny_llama, settings)


def test_an_override_to_a_device_that_is_not_there_is_refused(tiny_llama: Path) -> None:
    settings = ModelSettings(overrides=(Override("ffn_down", "CUDA7"),))
    with pytest.raises(BadRequest, match="'CUDA7'; this build has"):
        Model(tiny_llama, settings)


def test_overridden_tensors_compute_as_before(tiny_llama: Path) -> None:
    found = []
    for settings in (ModelSettings(), ModelSettings(overrides=(Override("ffn_", "CPU"),))):
        with Model(tiny_llama, settings) as model:
            context = Context(model, ContextSettings(64, threads=1))
            found.append(context.decode([Span(0, 0, [5, 6, 7], 1)])[0].copy())
            context.close()
    assert np.array_equal(*found)


@pytest.mark.parametrize("text", ["exps", "=CPU", "exps=", "(=CPU"])
def test_an_override_has_a_pattern_and_a_device(text: str) -> None:
    with pytest.raises(BadRequest, match="override"):
        Override.parse(text)


def test_experts_of_the_first_layers_stay_in_ram(tmp_path: Path) -> None:
    path = headers.write_experts(tmp_path / "mixture.gguf")
    names = [tensor.name for tensor in read_parts(path)[0].tensors]
    settings = ModelSettings(n_cpu_moe=2)
    check_overrides(settings, names, path.name)
    moved = {name for name in names if place_of(name, settings.all_overrides)}
    assert len(moved) == 6
    assert all("exps" in name and name.startswith(("blk.0.", "blk.1.")) for name in moved)
    every = ModelSettings(n_cpu_moe=-1).all_overrides
    assert sum(place_of(name, every) == "CPU" for name in names) == 12


def test_experts_in_ram_need_experts(tiny_llama: Path, tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="has no experts"):
        Model(tiny_llama, ModelSettings(n_cpu_moe=1))
    path = headers.write_experts(tmp_path / "mixture.gguf", n_layers=4)
    names = [tensor.name for tensor in read_parts(path)[0].tensors]
    with pytest.raises(BadRequest, match="has 4 layers; n_cpu_moe is 5"):
        check_overrides(ModelSettings(n_cpu_moe=5), names, path.name)


@pytest.mark.parametrize(
    ("settings", "gpus", "reason"),
    [
        ({"tensor_split": (3, 1)}, ["A"], "2 shares, there are 1"),
        ({"tensor_split": (3, 1)}, [], "there are 0 GPUs"),
        ({"tensor_split": (1.0,), "split_mode": "none"}, ["A"], "leave one"),
        ({"main_gpu": 2}, ["A", "B"], "main GPU 2, there are 2"),
        ({"split_mode": "row"}, [], "needs a GPU"),
    ],
)
def test_a_split_that_does_not_add_up_is_refused(
    settings: dict[str, object], gpus: list[str], reason: str
) -> None:
    with pytest.raises(BadRequest, match=reason):
        check_split(ModelSettings(**settings), gpus)  # type: ignore[arg-type]
    check_split(ModelSettings(tensor_split=(3, 1)), ["A", "B"])


@pytest.mark.parametrize("shares", ["0,0", "-1,2", "nan,1"])
def test_shares_are_numbers_of_which_one_counts(shares: str) -> None:
    with pytest.raises(BadRequest, match="tensor split"):
        ModelSettings(tensor_split=tuple(map(float, shares.split(","))))


def test_stretched_positions_change_the_logits(tiny_llama: Path) -> None:
    found = []
    for rope in (
        RopeSettings(),
        RopeSettings(scaling="linear", scale=4.0),
        RopeSettings(scaling="yarn", scale=4.0, yarn_orig_context=64),
        RopeSettings(freq_base=500.0),
    ):
        with Model(tiny_llama, ModelSettings()) as model:
            context = Context(model, ContextSettings(64, threads=1, rope=rope))
            found.append(context.decode([Span(0, 0, list(range(5, 25)), 1)])[0].copy())
            context.close()
    for i, one in enumerate(found):
        assert not any(np.allclose(one, other, atol=1e-3) for other in found[i + 1 :])


def test_a_ubatch_cuts_a_batch_without_changing_what_comes_out(tiny_llama: Path) -> None:
    found = []
    for n_ubatch in (0, 32):
        with Model(tiny_llama, ModelSettings()) as model:
            settings = ContextSettings(256, threads=1, n_batch=128, n_ubatch=n_ubatch)
            context = Context(model, settings)
            found.append(context.decode([Span(0, 0, [i % 200 for i in range(100)], 1)])[0].copy())
            context.close()
    assert np.allclose(found[0], found[1], atol=1e-3)
    with pytest.raises(BadRequest, match="ubatch of 64 rows in batches of 32"):
        ContextSettings(256, n_batch=32, n_ubatch=64)


@pytest.mark.parametrize(
    "settings", [{"scale": 0.0}, {"scaling": "ntk"}, {"yarn_ext_factor": -1.0}, {"freq_base": -1.0}]
)
def test_scaling_that_means_nothing_is_refused(settings: dict[str, object]) -> None:
    with pytest.raises(BadRequest, match=r"(?i)rope|yarn"):
        RopeSettings(**settings)  # type: ignore[arg-type]
