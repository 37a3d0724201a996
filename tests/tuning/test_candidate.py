"""Who may race: what could draft for a target, checked before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from parlay.hub.place import Entry
from parlay.models import SHIPPED_DRAFTERS
from parlay.planning.devices import MemoryPool
from parlay.tuning.candidates import candidates, sittings
from tests import tiny_drafters, tiny_models


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tune-target")
    return tiny_models.write_llama(folder / "target.gguf", n_embd=128, n_layers=4)


def test_siblings_and_heads_are_candidates_and_strangers_are_not(
    target: Path, tiny_llama: Path, tiny_other_vocab: Path, tmp_path: Path
) -> None:
    head = tiny_drafters.write_dflash(tmp_path / "head.gguf", n_embd=128, layers=(1, 3))
    narrow = tiny_drafters.write_dflash(tmp_path / "narrow.gguf", n_embd=64)
    files = (tiny_llama, tiny_other_vocab, head, narrow)
    found = candidates(target, 512, [Entry(f.stem, f, "hub") for f in files])
    assert {(c.name, c.kind, c.problem) for c in found} == {
        ("llama", "model", None),
        ("head", "dflash", None),
    }
    assert all(c.n_bytes > 0 for c in found)


def test_a_named_file_that_cannot_draft_is_shown_with_the_reason(
    target: Path, tiny_llama: Path, tiny_other_vocab: Path
) -> None:
    named = [Entry(f.stem, f, "hub") for f in (tiny_llama, tiny_other_vocab, target)]
    found = {c.path: c.problem for c in candidates(target, 512, named=named)}
    assert found[tiny_llama] is None
    assert "another vocabulary" in (found[tiny_other_vocab] or "")
    assert "half of the target" in (found[target] or "")


def test_a_target_with_a_head_of_its_own_may_use_it(tmp_path: Path) -> None:
    target = tiny_drafters.write_nextn(tmp_path / "target.gguf")
    own = next(c for c in candidates(target, 512) if c.kind == "head")
    assert own.path == target and own.problem is None


def test_what_does_not_fit_beside_the_target_is_not_raced(
    target: Path, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = [MemoryPool("RAM", "ram", 1 << 20, 1 << 20)]
    monkeypatch.setattr("parlay.planning.limits.usable_pools", lambda: full)
    found = candidates(target, 512, [Entry("llama", tiny_llama, "hub")])
    assert [c.problem for c in found] == ["does not fit beside the target"]
    assert len(sittings(found)) == 1


def test_every_drafter_races_alone_and_beside_suffix(target: Path, tiny_llama: Path) -> None:
    found = candidates(target, 512, [Entry("llama", tiny_llama, "hub")])
    free, own = sittings([*found, *found])[:2]
    assert [way.label for way in free.ways] == ["suffix"]
    assert [(w.label, w.proposers) for w in own.ways] == [
        ("llama", "model"),
        ("suffix+llama", "suffix,model"),
    ]
    labels = [w.label for s in sittings([*found, *found]) for w in s.ways]
    assert len(set(labels)) == len(labels)


@pytest.mark.weights
def test_the_shipped_drafters_race_for_the_default_model(smollm2: Path) -> None:
    assert {c.name for c in candidates(smollm2, 512)} >= set(SHIPPED_DRAFTERS)
