"""The page of results says what its files say, and every figure lies in its interval."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "benchmarks/results").glob("*.json"))


def test_the_page_and_its_plots_are_written_from_the_files_of_results() -> None:
    command = [sys.executable, "scripts/results.py", "--check"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_interval_holds_its_figure(path: Path) -> None:
    for row in json.loads(path.read_text("utf-8"))["rows"]:
        for cell in row["cells"]:
            assert not isinstance(cell, list) or cell[1] <= cell[0] <= cell[2], row["name"]
