"""A head is found in the target's file, beside it, or not at all; nothing is loaded for that."""

from __future__ import annotations

from pathlib import Path

import pytest

from parlay.pairing.heads import find_head
from parlay.parlay import known_draft
from tests import tiny_drafters, tiny_models


def found_file(target: Path) -> Path | None:
    head = find_head(target)
    return None if head is None else head.path


def test_a_head_in_the_targets_own_file_comes_first(tmp_path: Path) -> None:
    target = tiny_drafters.write_nextn(tmp_path / "target.gguf")
    tiny_drafters.write_nextn(tmp_path / "target-mtp.gguf", only_head=True)
    head = find_head(target)
    assert head is not None
    assert head.path == target
    assert "itself" in head.why


def test_several_layers_are_a_head_only_where_llama_cpp_runs_them(tmp_path: Path) -> None:
    chain = tiny_drafters.write_chain(tmp_path / "chain.gguf")
    assert find_head(chain) is not None
    assert find_head(tiny_drafters.write_nextn(tmp_path / "two.gguf", n_links=2)) is None


def test_a_head_beside_the_target_is_found_by_its_shape(tmp_path: Path) -> None:
    target = tiny_models.write_llama(tmp_path / "target.gguf")
    tiny_models.write_llama(tmp_path / "target-small.gguf", n_embd=32)
    assert find_head(target) is None
    tiny_drafters.write_dflash(tmp_path / "a-deep.gguf", layers=(0, 7))
    tiny_drafters.write_dflash(tmp_path / "b-narrow.gguf", n_embd=32)
    tiny_drafters.write_dflash(tmp_path / "c-words.gguf", vocab=tiny_models.OTHER_TEXTS)
    tiny_drafters.write_nextn(tmp_path / "d-other.gguf", only_head=True)
    assert find_head(target) is None
    right = tiny_drafters.write_dflash(tmp_path / "e.gguf")
    head = find_head(target)
    assert head is not None
    assert (head.path, "lies beside target.gguf" in head.why) == (right, True)
    nearer = tiny_drafters.write_eagle3(tmp_path / "target-eagle.gguf")
    assert found_file(target) == nearer


def test_an_assistant_beside_a_gemma_4_is_found(tmp_path: Path) -> None:
    target = tiny_models.write_gemma4(tmp_path / "target.gguf")
    tiny_drafters.write_assistant(tmp_path / "narrow.gguf", target_width=48)
    assert find_head(target) is None
    assistant = tiny_drafters.write_assistant(tmp_path / "target-assistant.gguf")
    assert found_file(target) == assistant


def test_a_target_that_gives_no_states_gets_no_head(tmp_path: Path) -> None:
    target = tiny_models.write_gemma3(tmp_path / "target.gguf")
    tiny_drafters.write_dflash(tmp_path / "head.gguf")
    assert find_head(target) is None


def test_what_was_found_is_told_in_a_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    target = tiny_drafters.write_nextn(tmp_path / "target.gguf")
    with caplog.at_level("INFO", "parlay.chosen"):
        assert known_draft(target) == ("suffix", str(target))
    assert "draft: suffix, and a NextN head in target.gguf itself" in caplog.text
    assert known_draft(tmp_path / "missing.gguf") == ("suffix",)
