"""`parlay report`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parlay.errors import ParlayError
from parlay.results.record import dump
from tests.cli.runner import call
from tests.results import made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "result.json").write_text(dump(made.record()))
    return tmp_path


def test_page_and_table_are_written_beside_the_result(folder: Path) -> None:
    result = call("report", folder, "--json")
    assert result.exit_code == 0
    said = json.loads(result.stdout)
    assert Path(said["html"]).read_text().startswith("<!doctype html>")
    assert "| suffix | all |" in Path(said["markdown"]).read_text()


def test_markdown_alone_is_printed(folder: Path) -> None:
    result = call("report", folder / "result.json", "--markdown")
    assert result.exit_code == 0
    assert "| suffix | all |" in result.stdout
    assert not (folder / "report.html").exists()


@pytest.mark.parametrize("name", ["missing.json", "broken.json"])
def test_what_cannot_be_read_is_one_line(folder: Path, name: str) -> None:
    (folder / "broken.json").write_text("{}")
    result = call("report", folder / name)
    assert isinstance(result.exception, ParlayError)
    assert "\n" not in result.exception.message


def test_a_place_that_cannot_be_written_is_named(folder: Path) -> None:
    result = call("report", folder, "--out", folder / "no" / "such" / "page.html")
    assert isinstance(result.exception, ParlayError)
    assert "--out" in result.exception.message
