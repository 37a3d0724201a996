"""Drafters that a hub has for a target: found by the usual names, fetched if they could draft."""

from __future__ import annotations

from pathlib import Path

import pytest

from parlay.tuning.published import base_name, published
from tests import tiny_drafters, tiny_models
from tests.hub.loopback import Hub


def test_smaller_siblings_and_heads_are_fetched_and_nothing_else(hub: Hub, tmp_path: Path) -> None:
    made = tiny_models.write_llama
    target = made(tmp_path / "Tiny-7B-Instruct-Q8_0.gguf", n_embd=128, n_layers=4)
    sibling = made(tmp_path / "Tiny-0.5B-Instruct-Q4_0.gguf")
    stranger = made(tmp_path / "Tiny-1B-Instruct-Q4_0.gguf", vocab=tiny_models.OTHER_TEXTS)
    head = tiny_drafters.write_dflash(tmp_path / "head-F32.gguf", n_embd=128, layers=(1, 3))
    hub.add("acme/Tiny-0.5B-Instruct-GGUF", sibling)
    hub.add("acme/Tiny-1B-Instruct-GGUF", stranger)
    hub.add("acme/Tiny-14B-Instruct-GGUF", sibling)
    hub.add("acme/Tiny-7B-Instruct-dflash", head)
    said: list[str] = []
    found = {entry.name: entry.path.name for entry in published(target, said.append)}
    assert found == {
        "acme/Tiny-7B-Instruct-dflash:F32": "head-F32.gguf",
        "acme/Tiny-0.5B-Instruct-GGUF:Q4_0": "Tiny-0.5B-Instruct-Q4_0.gguf",
    }
    fetched = {path for verb, path, part in hub.asked if path.startswith("/cdn") and part is None}
    assert not any("1B" in path or "14B" in path for path in fetched)


def test_a_hub_that_is_down_leaves_the_race_to_what_is_here(tiny_llama: Path) -> None:
    assert published(tiny_llama, lambda _line: None) == []


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("Qwen2.5-7B-Instruct-Q4_K_M.gguf", "Qwen2.5-7B-Instruct"),
        ("Qwen3-32B-Q8_0-00001-of-00003.gguf", "Qwen3-32B"),
        ("model.gguf", "model"),
    ],
)
def test_a_repository_is_called_as_its_files_without_their_quantisation(
    file: str, name: str
) -> None:
    assert base_name(Path(file)) == name
