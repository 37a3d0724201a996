"""The replay of free drafts: a tiny model's texts are said again, and counted."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.measurements import free_replay


def run(monkeypatch: pytest.MonkeyPatch, *call: str) -> None:
    monkeypatch.setattr(sys, "argv", ["free_replay", *call])
    free_replay.main()


def test_what_was_recorded_is_said_again_and_every_round_counted_the_same_each_time(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, out = tmp_path / "texts.json", tmp_path / "found.json"
    model = ("--model", str(tiny_llama))
    said = free_replay.record(str(tiny_llama), tokens=24)
    texts.write_text(json.dumps([said[0], said[-1]]), "utf-8")
    found = []
    for _ in range(2):
        replay = ("--texts", str(texts), "--prices", "gpu-14b-f16", "--json", str(out))
        run(monkeypatch, *model, *replay, "--arms", "all", "wrong")
        found.append(json.loads(out.read_text("utf-8"))["gpu-14b-f16"])
    assert found[0] == found[1]
    arms = found[0]["edits-16"]["arms"]
    assert arms.keys() == {"all", "wrong"}
    assert arms["all"]["tokens"] == arms["wrong"]["tokens"] == 23
    assert found[0]["structured-24"]["arms"]["all"]["accepted"] > 0
