"""The first screen of someone who has nothing: models that are here, and which fit."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from parlay.deployment import Deployment
from parlay.planning.devices import MemoryPool
from parlay.server.figures.local_models import local_models
from tests.server.running import Running


@pytest.fixture
def studio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_llama: Path) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / ".lmstudio/models/acme/Tiny/tiny-f32.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(tiny_llama.read_bytes())
    return path


def test_models_are_told_with_a_command_and_without_paths(studio: Path) -> None:
    found = {row["name"]: row for row in local_models(Deployment(), studio, 0)}
    assert found["tiny-f32"]["command"] == "parlay serve tiny-f32"
    assert found["tiny-f32"]["fits"] and found["tiny-f32"]["serving"]
    assert str(studio.parent) not in str(found)


def test_what_is_too_large_says_so(studio: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = [MemoryPool("RAM", "ram", 1 << 30, 1 << 10)]
    monkeypatch.setattr("parlay.server.figures.local_models.usable_pools", lambda: small)
    row = next(r for r in local_models(Deployment(), Path("other"), 0) if r["name"] == "tiny-f32")
    assert not row["fits"]
    # What is served now would be free for it.
    freed = local_models(Deployment(), Path("other"), 1 << 30)
    assert next(r for r in freed if r["name"] == "tiny-f32")["fits"]


def test_a_server_for_others_tells_nothing_of_its_disk(studio: Path) -> None:
    public = Deployment.model_validate({"server": {"host": "0.0.0.0"}})
    assert local_models(public, studio, 0) == []


def test_the_route_answers(server: Running, studio: Path) -> None:
    names = {row["name"] for row in httpx.get(f"{server.url}/live/models").json()}
    assert "tiny-f32" in names
