"""The manifest: pairs recorded, found again, and files that changed noticed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from parlay import models
from parlay.errors import BadRequest
from parlay.pairing.alignment import check_pair
from parlay.pairing.hashes import sha256_of
from parlay.pairing.manifest import (
    all_pairs,
    config_folder,
    parse_manifest,
    shipped_manifest,
    user_manifest,
)
from parlay.pairing.records import Found, find_drafter, record, verify
from parlay.parlay import known_draft, named_draft


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARLAY_CONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("PARLAY_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def pair(tmp_path: Path, tiny_llama: Path, tiny_drafter: Path) -> tuple[Path, Path]:
    copies = tmp_path / "target.gguf", tmp_path / "drafter.gguf"
    shutil.copyfile(tiny_llama, copies[0])
    shutil.copyfile(tiny_drafter, copies[1])
    return copies


def recorded(pair: tuple[Path, Path], notes: str = "") -> None:
    record(*pair, check_pair(*pair), notes)


def found(target: Path) -> Found:
    it = find_drafter(target)
    assert it is not None
    return it


def _hashed_again() -> None:
    pytest.fail("hashed again")


def rewrite(path: Path) -> None:
    """A second later, however coarse the file system's clock is."""
    before = path.stat().st_mtime_ns
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x7f")
    os.utime(path, ns=(before, before + 10**9))


def test_a_recorded_drafter_is_found(pair: tuple[Path, Path]) -> None:
    assert find_drafter(pair[0]) is None
    recorded(pair)
    it = found(pair[0])
    assert (it.draft, it.warnings) == (str(pair[1]), ())
    assert it.pair.verdict == "identical"
    assert (it.pair.target.quantisation, it.pair.drafter.bytes) == ("F32", pair[1].stat().st_size)


def test_the_newest_record_wins_and_replaces_its_like(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    recorded(pair, "first")
    other = tmp_path / "other.gguf"
    shutil.copyfile(pair[0], other)
    recorded((pair[0], other))
    assert found(pair[0]).draft == str(other)
    recorded(pair, "again")
    assert found(pair[0]).draft == str(pair[1])
    assert [p.notes for p in user_manifest().pairs] == ["again", ""]


def test_a_changed_file_is_used_with_a_warning(pair: tuple[Path, Path]) -> None:
    recorded(pair)
    rewrite(pair[1])
    (warning,) = found(pair[0]).warnings
    assert "drafter.gguf" in warning
    assert "hash changed" in warning


def test_a_touched_file_is_hashed_once_and_found_the_same(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(pair)
    os.utime(pair[1])
    assert found(pair[0]).warnings == ()
    monkeypatch.setattr("parlay.pairing.hashes.hashlib.sha256", _hashed_again)
    monkeypatch.setattr("parlay.store.fingerprint", lambda *parts: "unused")
    os.utime(pair[1], ns=(0, user_manifest().pairs[0].drafter.mtime_ns or 0))
    assert found(pair[0]).warnings == ()


def test_a_moved_drafter_is_looked_for_beside_the_target(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    recorded(pair)
    folder = tmp_path / "moved"
    folder.mkdir()
    moved = [Path(shutil.move(path, folder)) for path in pair]
    assert found(moved[0]).draft == str(moved[1])
    moved[1].unlink()
    assert find_drafter(moved[0]) is None


def test_verify_notices_what_is_gone_or_changed(pair: tuple[Path, Path]) -> None:
    recorded(pair)
    assert [v.problem for v in verify(all_pairs())] == [None, None]
    rewrite(pair[0])
    pair[1].unlink()
    assert [v.problem for v in verify(all_pairs())] == ["has changed", "is gone"]


def test_the_shipped_manifest_pairs_the_default_model_with_every_shipped_drafter() -> None:
    pairs = shipped_manifest().pairs
    for pair, path in zip(pairs, models.SHIPPED_DRAFTERS.values(), strict=True):
        assert (pair.target.bytes, pair.target.sha256) == (models.N_BYTES, models.SHA256)
        assert (pair.drafter.name, pair.drafter.bytes, pair.drafter.sha256) == (
            path.name,
            path.stat().st_size,
            sha256_of(path),
        )


@pytest.mark.weights
def test_the_default_model_drafts_with_the_shipped_drafter_unless_the_user_recorded_another(
    smollm2: Path, tiny_drafter: Path, tmp_path: Path
) -> None:
    assert found(smollm2).draft == str(models.DEFAULT_DRAFTER)
    assert found(smollm2).warnings == ()
    assert known_draft(smollm2) == ("suffix", str(models.DEFAULT_DRAFTER))
    copy = tmp_path / "renamed.gguf"
    copy.symlink_to(smollm2)
    assert found(copy).draft == str(models.DEFAULT_DRAFTER)
    own = check_pair(smollm2, models.DEFAULT_DRAFTER)
    shipped = shipped_manifest().pairs
    assert own.verdict == shipped[0].verdict == "identical"
    assert check_pair(smollm2, models.BLOCK_DRAFTER).verdict == shipped[1].verdict == "compatible"
    record(smollm2, tiny_drafter, own)
    assert found(smollm2).draft == str(tiny_drafter)


def test_a_file_of_the_same_name_but_another_size_has_no_shipped_drafter(tmp_path: Path) -> None:
    other = tmp_path / Path(models.MEMBER).name
    other.write_bytes(b"GGUF")
    assert find_drafter(other) is None


def test_default_and_default_block_name_the_shipped_drafters_and_smollm2_the_model_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(models, "default_model", lambda progress=None: Path("fetched.gguf"))
    assert named_draft("suffix,default") == ("suffix", str(models.DEFAULT_DRAFTER))
    assert named_draft("default-block") == (str(models.BLOCK_DRAFTER),)
    assert named_draft("smollm2") == ("fetched.gguf",)
    assert named_draft("none") == ()


BROKEN = ["{", "pairs: 3", "version: 9", "pairs: [{target: {nome: x}}]", "- a", "\x00"]


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_manifest_is_one_line(text: str) -> None:
    with pytest.raises(BadRequest) as error:
        parse_manifest(text, "pairs.yaml")
    assert "pairs.yaml" in error.value.message
    assert "\n" not in error.value.message


def test_an_unreadable_manifest_is_one_line() -> None:
    path = config_folder() / "pairs.yaml"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(BadRequest, match=r"pairs\.yaml cannot be read"):
        user_manifest()
