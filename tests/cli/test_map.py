"""`parlay map`."""

from __future__ import annotations

import json
from pathlib import Path

from parlay.errors import ParlayError
from parlay.results.record import dump
from tests.cli.runner import call
from tests.results import made


def test_page_is_built_from_a_folder(tmp_path: Path) -> None:
    (tmp_path / "ryzen7950x.json").write_text(dump(made.submission()))
    out = tmp_path / "page" / "map.html"
    out.parent.mkdir()
    result = call("map", tmp_path, "--out", out, "--json")
    assert (result.exit_code, json.loads(result.stdout)["submissions"]) == (1, 1) or (
        result.exit_code == 0
    )
    assert "ryzen7950x" in out.read_text()


def test_refused_submissions_are_left_out_and_named(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{}")
    out = tmp_path.parent / f"{tmp_path.name}.html"
    result = call("map", tmp_path, "--out", out)
    assert result.exit_code == 1
    assert "left out  bad.json" in result.stderr
    assert out.exists()


def test_a_folder_is_wanted(tmp_path: Path) -> None:
    result = call("map", tmp_path / "nothing")
    assert isinstance(result.exception, ParlayError)
