"""What a model's name means."""

from __future__ import annotations

from pathlib import Path

import pytest

from parlay.deployment import load_deployment
from parlay.errors import BadRequest
from parlay.hub.name import DefaultName, FileName, HubName, OllamaName, ShortName, parse_name


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("default", DefaultName()),
        ("smollm2", DefaultName()),
        ("model.gguf", FileName(Path("model.gguf"))),
        ("./org/repo", FileName(Path("org/repo"))),
        ("/models/target", FileName(Path("/models/target"))),
        ("a/b/c", FileName(Path("a/b/c"))),
        ("org/repo.gguf", FileName(Path("org/repo.gguf"))),
        ("org/repo", HubName("org/repo")),
        ("org/Repo-7B-GGUF:Q4_K_M", HubName("org/Repo-7B-GGUF", "Q4_K_M")),
        ("hf:org/repo", HubName("org/repo")),
        ("hf:org/repo:UD-Q4_K_XL", HubName("org/repo", "UD-Q4_K_XL")),
        ("hf:org/repo/part/file.gguf", HubName("org/repo", None, "part/file.gguf")),
        ("ollama:llama3.2", OllamaName("llama3.2")),
        ("ollama:llama3.2:1b", OllamaName("llama3.2", "1b")),
        ("ollama:hf.co/org/repo:Q8_0", OllamaName("hf.co/org/repo", "Q8_0")),
        ("Qwen2.5-7B-Instruct", ShortName("Qwen2.5-7B-Instruct")),
    ],
)
def test_a_name_means_one_thing(text: str, meaning: object) -> None:
    assert parse_name(text) == meaning


def test_a_file_that_exists_goes_before_a_repository_of_that_name(tmp_path: Path) -> None:
    (tmp_path / "org").mkdir()
    (tmp_path / "org" / "repo").touch()
    assert parse_name("org/repo", tmp_path) == FileName(tmp_path / "org" / "repo")


@pytest.mark.parametrize("text", ["hf:", "hf:repo", "hf:a/b:", "ollama:", "ollama:a:b:c"])
def test_half_a_name_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadRequest, match="write"):
        parse_name(text)


def test_a_deployment_keeps_names_and_makes_paths_absolute(tmp_path: Path) -> None:
    file = tmp_path / "deploy.yaml"
    file.write_text("model: {target: 'org/repo:Q4_K_M', drafter: 'suffix,hf:org/small,d.gguf'}")
    model = load_deployment(file, environ={}).model
    assert model.target == "org/repo:Q4_K_M"
    assert model.drafter == f"suffix,hf:org/small,{tmp_path / 'd.gguf'}"
