"""`parlay train` is another package's: found where that is installed, told of where it is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from parlay.cli.main import app


def test_without_the_package_one_line_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("parlay.cli.train.entry_points", lambda group: ())
    result = CliRunner().invoke(app, ["train", "--help"])
    assert "pip install './packages/parlay-train[torch]'" in str(result.exception)
    assert "\n" not in str(result.exception)


def test_an_installed_package_gets_all_that_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "trainer-1.dist-info"
    made.mkdir()
    (made / "METADATA").write_text("Name: trainer\nVersion: 1\n")
    (made / "entry_points.txt").write_text("[parlay.verbs]\ntrain = a_trainer:main\n")
    (tmp_path / "a_trainer.py").write_text("def main(words):\n    print(words)\n    return 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    result = CliRunner().invoke(app, ["train", "t.gguf", "-o", "d.gguf", "--help"])
    assert result.stdout == "['t.gguf', '-o', 'd.gguf', '--help']\n"
    assert result.exit_code == 3
