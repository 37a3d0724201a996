"""Files that several processes write, or that a killed one left half written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from parlay import store
from parlay.control.budget import BudgetController
from parlay.control.prices.cost import CostTable
from parlay.control.prices.curve import Curve
from parlay.engine.calibration import joined, keep_learned, learned_controller
from parlay.pairing.manifest import user_manifest
from tests.serving import PATIENCE_S

COSTS = CostTable({(1, 1): Curve({1: 1.0}, {})}, name="made up")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARLAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PARLAY_CONFIG", str(tmp_path / "config"))


def damage(kind: str, key: str, text: str) -> Path:
    path = store.cache_folder() / kind / f"{key}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"target": 7}', '{"parlay_costs": 1}', '{"a": \x00}', "null"]
)
def test_a_damaged_record_is_set_aside_with_one_line(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = damage("costs", "k", text)
    assert store.read("costs", "k", CostTable.from_dict) is None
    assert not path.exists() and path.with_suffix(".damaged").exists()
    assert len(caplog.records) == 1 and "set aside" in caplog.text
    assert store.read("costs", "k", CostTable.from_dict) is None
    assert len(caplog.records) == 1


@pytest.mark.parametrize("text", ['{"rates": 3}', '{"saved": "much"}'])
def test_learned_nonsense_is_forgotten(text: str) -> None:
    damage("learned", "k", text)
    assert isinstance(learned_controller(COSTS, "k"), BudgetController)


def test_the_last_to_write_takes_nothing_from_who_saw_more() -> None:
    mine = {"rates": {"a": [[0.5], [5]], "b": [[0.5], [1]]}, "saved": 3.0}
    kept = {"rates": {"b": [[0.9], [9]], "c": [[0.9], [2]], "d": "garbled"}, "saved": 1.0}
    found = joined(mine, kept)
    assert {who: each[1] for who, each in found["rates"].items() if who != "d"} == {
        "a": [5],
        "b": [9],
        "c": [2],
    }
    assert found["saved"] == 3.0
    keep_learned("k", BudgetController(COSTS))
    assert store.load("learned", "k") is not None


_COUNT = """
import sys
from parlay import store
for _ in range(40):
    store.update("counts", "k", lambda kept: {"n": (kept or {"n": 0})["n"] + 1})
"""
_PAIR = """
import sys
from parlay.pairing.manifest import Member, Pair, save_pair
for i in range(12):
    name = f"{sys.argv[1]}-{i}"
    save_pair(Pair(target=Member(name=name, sha256="0" * 64), drafter=Member(name=name),
                   verdict="checked"))
"""


@pytest.mark.parametrize("script", [_COUNT, _PAIR])
def test_two_processes_lose_nothing_of_each_other(script: str) -> None:
    both = [subprocess.Popen([sys.executable, "-c", script, name]) for name in ("a", "b")]
    assert [process.wait(PATIENCE_S) for process in both] == [0, 0]
    if script is _COUNT:
        assert store.load("counts", "k") == {"n": 80}
    else:
        assert len(user_manifest().pairs) == 24
