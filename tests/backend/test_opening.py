"""From a deployment to settings: what is left open is found."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from parlay.backend.opening import (
    check_files,
    engine_settings,
    load_settings,
    with_fit,
)
from parlay.deployment import Deployment, DeploymentError, load_deployment
from parlay.engine.settings import LoadSettings
from parlay.llama.settings import Adapter, Override, RopeSettings


def deployment(target: Path, **runtime: Any) -> Deployment:
    sections = {"model": {"target": str(target), "drafter": "suffix"}, "runtime": runtime}
    return Deployment.model_validate(sections)


def test_what_fits_is_found_at_the_start(
    tiny_llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = deployment(tiny_llama, context_size="auto", gpu_layers="auto", slots=2)
    with caplog.at_level("INFO", "parlay.chosen"):
        fitted = with_fit(given)
    assert (fitted.runtime.context_size, fitted.runtime.gpu_layers) == (512, -1)
    assert "fit: a context of 512 tokens, all it has" in caplog.text
    assert engine_settings(fitted).context.context_size == 512


def test_numbers_are_left_as_they_are(tiny_llama: Path) -> None:
    given = deployment(tiny_llama, context_size=256)
    assert with_fit(given) is given


def test_keys_of_large_machines_reach_the_settings(tiny_llama: Path) -> None:
    flags = {
        "split-mode": "row",
        "tensor-split": "3,1",
        "main-gpu": 1,
        "n-cpu-moe": 2,
        "override-tensor": "ffn_.*=CPU",
        "ubatch-size": 64,
        "rope-scaling": "yarn",
        "rope-scale": 4,
        "yarn-orig-ctx": 512,
    }
    given = deployment(tiny_llama, llama=flags)
    loaded = load_settings(given)
    model, context = loaded.model, loaded.context
    assert (model.split_mode, model.tensor_split, model.main_gpu) == ("row", (3.0, 1.0), 1)
    assert model.all_overrides[0] == Override("ffn_.*", "CPU")
    assert len(model.all_overrides) == 3
    assert context.n_ubatch == 64
    assert context.rope == RopeSettings("yarn", 4.0, yarn_orig_context=512)
    drafter = engine_settings(given).drafter_model
    assert (drafter.n_cpu_moe, drafter.overrides, drafter.tensor_split) == (0, (), (3.0, 1.0))


def test_bits_count_wherever_an_answer_may_be_exact() -> None:
    assert LoadSettings().context.same_bits
    assert LoadSettings(mode="exact").context.same_bits
    assert not LoadSettings(mode="faithful").context.same_bits
    assert not LoadSettings(unified_cache=True).context.same_bits


def test_keys_and_keywords_of_one_name_have_one_default(tiny_llama: Path) -> None:
    given, usual = load_settings(deployment(tiny_llama)), LoadSettings()
    differ = {f.name for f in fields(usual) if getattr(given, f.name) != getattr(usual, f.name)}
    assert differ == {"target", "slots", "remember_tokens", "rope"}


def test_adapters_are_meant_from_the_files_folder(tmp_path: Path) -> None:
    file = tmp_path / "deploy.yaml"
    file.write_text("model:\n  lora: [a.gguf, b.gguf:0.5]\n")
    adapters = load_settings(load_deployment(file, environ={})).model.adapters
    assert adapters == (Adapter(tmp_path / "a.gguf"), Adapter(tmp_path / "b.gguf", 0.5))


def test_a_context_that_is_no_number_is_one_line(tiny_llama: Path) -> None:
    with pytest.raises(DeploymentError, match=r"runtime\.context_size: Input should be"):
        load_deployment(overrides={"runtime.context_size": "many"}, environ={})


@pytest.mark.parametrize("key", ["runtime.remember_file", "server.slot_save_path"])
def test_a_file_of_somebody_elses_is_refused_before_anything_is_loaded(
    tiny_llama: Path, key: str
) -> None:
    given = {"model.target": str(tiny_llama), key: str(tiny_llama)}
    with pytest.raises(DeploymentError, match=f"^{key}: .*; name another"):
        check_files(load_deployment(overrides=given, environ={}))


@pytest.mark.parametrize("key", ["runtime.remember_file", "server.slot_save_path"])
def test_what_is_written_is_meant_from_the_files_folder(tmp_path: Path, key: str) -> None:
    file, (section, _, name) = tmp_path / "deploy.yaml", key.partition(".")
    file.write_text(f"{section}:\n  {name}: kept\n")
    found = load_deployment(file, environ={})
    assert getattr(getattr(found, section), name) == str(tmp_path / "kept")
