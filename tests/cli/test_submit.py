"""`parlay submit`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parlay.errors import ParlayError
from parlay.results.record import dump
from parlay.results.submission import parse
from tests.cli.runner import call
from tests.results import made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "result.json").write_text(dump(made.record()))
    return tmp_path


def test_one_file_is_built_and_previewed(folder: Path) -> None:
    out = folder / "ryzen7950x.json"
    result = call("submit", folder, "--name", "ryzen7950x", "--notes", "stock", "--out", out)
    assert result.exit_code == 0
    assert "CC BY 4.0" in result.stdout
    assert "CONTRIBUTING.md" in result.stdout
    assert parse(out.read_bytes(), "x").notes == "stock"


def test_built_file_passes_the_check(folder: Path) -> None:
    community = folder / "community"
    community.mkdir()
    call("submit", folder, "--name", "ryzen7950x", "--out", community / "ryzen7950x.json")
    result = call("submit", community, "--check")
    assert result.exit_code == 0
    assert "1 submission(s), 0 refused" in result.stdout


def test_check_names_what_is_wrong(folder: Path) -> None:
    result = call("submit", folder, "--check", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["result.json"]


def test_a_result_that_cannot_be_believed_is_not_written(folder: Path) -> None:
    slow = made.MACHINE.model_copy(update={"memory_bandwidth": 1e9})
    lie = made.changed(made.record(), machine=slow)
    (folder / "result.json").write_text(dump(lie))
    result = call("submit", folder, "--name", "liar", "--out", folder / "liar.json", "--json")
    assert result.exit_code == 1
    assert any("bandwidth" in p for p in json.loads(result.stdout)["problems"])
    assert not (folder / "liar.json").exists()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ([], "--name"),
        (["--name", "Bad Name"], "such as rtx4090-ryzen7950x"),
        (["--name", "fine", "--notes", "see /home/somebody/x"], "a path"),
        (["--name", "fine", "--notes", "<script>"], "HTML"),
    ],
)
def test_bad_names_and_notes_are_refused(folder: Path, options: list[str], reason: str) -> None:
    result = call("submit", folder, *options)
    assert isinstance(result.exception, ParlayError)
    assert reason in result.exception.message


def test_check_wants_a_folder(folder: Path) -> None:
    result = call("submit", folder / "result.json", "--check")
    assert isinstance(result.exception, ParlayError)
