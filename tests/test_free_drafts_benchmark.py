"""The benchmark of free drafts: its edits are those asked for, and told texts are said whole."""

from __future__ import annotations

import difflib
import json
import sys
from pathlib import Path

import pytest

from benchmarks.measurements import free_drafts
from benchmarks.shared.wanted_edits import wanted
from parlay.bench.suite import load_suite

EDITS = {prompt.id: prompt.prediction or "" for prompt in load_suite("edits-16").prompts}


@pytest.mark.parametrize("prompt", EDITS)
def test_every_edit_changes_its_file_and_only_rewrites_change_most_of_it(prompt: str) -> None:
    before, after = EDITS[prompt].split("\n"), wanted(prompt, EDITS[prompt]).split("\n")
    same = difflib.SequenceMatcher(None, before, after).ratio()
    assert same < 0.5 if prompt.startswith("rewrite") else 0.7 < same < 1


def test_an_edit_that_no_longer_fits_its_file_says_so() -> None:
    with pytest.raises(ValueError, match="rename-01"):
        wanted("rename-01", "another file")


def test_a_short_run_says_the_edit_in_every_arm(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "found.json"
    call = ["free_drafts", "--model", str(tiny_llama), "--prompts", "1"]
    monkeypatch.setattr(sys, "argv", [*call, "--tokens", "24", "--json", str(out)])
    free_drafts.main()
    suites = json.loads(out.read_text("utf-8"))["suites"]
    assert [suite["different_texts"] for suite in suites.values()] == [[], []]
    found = suites["edits-16"]
    assert found["over_plain"].keys() == {"free", "all", "others", "wrong"}
    # How much is bet depends on what a tiny model's passes take here and now.
    assert found["counts"]["plain"]["drafted"] == 0 < found["counts"]["free"]["rounds"]
