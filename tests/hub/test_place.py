"""Folders laid out as other programs lay them out: found, named, and none changed."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from parlay.errors import BadRequest, ModelUnavailable
from parlay.hub import place
from parlay.hub.card import cards, drafts_for
from parlay.hub.resolving import resolve_drafter, resolve_model
from parlay.models import SHIPPED_DRAFTERS
from tests import tiny_drafters, tiny_models
from tests.cli.runner import call

COMMIT = "f" * 40


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    return tiny_models.write_llama(folder / "big.gguf", n_embd=128, n_layers=4)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HF_HUB_CACHE", "LLAMA_CACHE", "OLLAMA_MODELS", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def laid_out(home: Path, target: Path, tiny_llama: Path, tiny_other_vocab: Path) -> Path:
    """The target from the hub, a smaller sibling from Ollama, another vocabulary in LM Studio, a
    head and a file that is no model in llama.cpp's cache."""
    repo = home / ".cache/huggingface/hub/models--acme--Big-GGUF"
    put(repo / "blobs" / "abc", target)
    snapshot = repo / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "big-Q8_0.gguf").symlink_to("../../blobs/abc")
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(COMMIT)
    _ollama(home / ".ollama/models", "registry.ollama.ai/library/tiny/latest", tiny_llama)
    put(home / ".lmstudio/models/acme/Other-GGUF/other-f32.gguf", tiny_other_vocab)
    head = tiny_drafters.write_dflash(home / "head.gguf", n_embd=128, layers=(1, 3))
    put(home / ".cache/llama.cpp/acme_head.gguf", head)
    head.unlink()
    (home / ".cache/llama.cpp/broken.gguf").write_bytes(b"GGUF and nothing more")
    return home


def put(path: Path, source: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(source.read_bytes())


def _ollama(folder: Path, manifest: str, source: Path) -> None:
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    put(folder / "blobs" / f"sha256-{digest}", source)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}"}
    path = folder / "manifests" / manifest
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"layers": [{"mediaType": "template", "digest": "x"}, layer]}))


def state(folder: Path) -> dict[str, tuple[int, int]]:
    found = (Path(root) / name for root, _, names in os.walk(folder) for name in names)
    return {str(p): (p.lstat().st_mtime_ns, p.lstat().st_size) for p in found}


def test_models_of_every_program_are_found_and_none_is_changed(laid_out: Path) -> None:
    before = state(laid_out)
    entries = [e for e in place.everything() if e.program != "parlay"]
    assert {(e.name, e.program) for e in entries} == {
        ("acme/Big-GGUF:Q8_0", "hub"),
        ("ollama:tiny:latest", "ollama"),
        ("other-f32", "lm studio"),
        ("acme_head", "llama.cpp"),
        ("broken", "llama.cpp"),
    }
    cards(entries)
    assert state(laid_out) == before


def test_the_list_says_what_each_could_draft_for(laid_out: Path) -> None:
    found = {card.entry.name: card for card in cards(place.everything())}
    assert "broken" not in found
    everything = list(found.values())
    assert [t.entry.name for t in drafts_for(found["ollama:tiny:latest"], everything)] == [
        "acme/Big-GGUF:Q8_0"
    ]
    assert [t.entry.name for t in drafts_for(found["acme_head"], everything)] == [
        "acme/Big-GGUF:Q8_0"
    ]
    assert drafts_for(found["other-f32"], everything) == []
    assert drafts_for(found["acme/Big-GGUF:Q8_0"], everything) == []


def test_the_command_lists_them_as_json_with_find_only(laid_out: Path) -> None:
    everything = json.loads(call("list", "--find", "--json").stdout)
    ours = [m for m in everything if m["name"] == "ollama:tiny:latest"]
    assert ours[0]["architecture"] == "llama" and ours[0]["drafts_for"] == ["acme/Big-GGUF:Q8_0"]
    listed = {m["program"] for m in json.loads(call("list", "--json").stdout)}
    assert listed <= {"parlay", "hub"}
    assert "acme/Big-GGUF:Q8_0" in call("list").stdout.replace("\n", "")


@pytest.mark.parametrize(
    ("name", "program"),
    [
        ("ollama:tiny", "ollama"),
        ("tiny", "ollama"),
        ("Big", "hub"),
        ("big-q8_0", "hub"),
        ("acme/Big-GGUF", "hub"),
        ("other", "lm studio"),
    ],
)
def test_a_model_that_is_here_is_found_by_its_short_name(
    laid_out: Path, name: str, program: str
) -> None:
    path = resolve_model(name)
    assert [e.program for e in place.everything() if e.path == path] == [program]


def test_an_unknown_or_unclear_name_says_which_there_are(laid_out: Path, target: Path) -> None:
    with pytest.raises(ModelUnavailable, match="did you mean tiny"):
        resolve_model("tinny")
    with pytest.raises(ModelUnavailable, match="ollama pull tiny:7b"):
        resolve_model("ollama:tiny:7b")
    put(laid_out / ".lmstudio/models/acme/Tiny/tiny.gguf", target)
    with pytest.raises(ModelUnavailable) as found:  # two models of one name are named once
        resolve_model("tinny")
    assert found.value.message.count("tiny,") + found.value.message.count("tiny?") == 1
    put(laid_out / ".lmstudio/models/acme/Big/big-q4_0.gguf", target)
    with pytest.raises(BadRequest, match="could be"):
        resolve_model("big")


def test_a_manifest_that_lies_is_no_model(home: Path) -> None:
    folder = home / ".ollama/models/manifests/registry.ollama.ai/library/evil"
    folder.mkdir(parents=True)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:../../../etc"}
    (folder / "latest").write_text(json.dumps({"layers": [layer]}))
    (folder / "broken").write_text("{")
    assert place.ollama() == []


def test_shipped_drafters_go_before_models_of_that_name() -> None:
    assert resolve_drafter("default") == SHIPPED_DRAFTERS["default"]
    assert resolve_model("some/other.gguf") == Path("some/other.gguf")
