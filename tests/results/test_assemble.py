"""Model files by their header and hash; the validator as CI calls it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from parlay.bench.community import main
from parlay.bench.record import dump
from parlay.bench.result import model_info
from tests.results import made


def test_a_model_is_known_by_its_file_not_its_folder(tiny_llama: Path) -> None:
    found = model_info(tiny_llama)
    assert (found.name, found.architecture) == ("llama", "llama")
    assert found.sha256 == hashlib.sha256(tiny_llama.read_bytes()).hexdigest()
    assert str(tiny_llama.parent) not in found.model_dump_json()


def test_validator_prints_a_line_for_each_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ryzen7950x.json").write_text(dump(made.submission()))
    assert main([str(tmp_path)]) == 0
    (tmp_path / "bad.json").write_text("{}")
    assert main([str(tmp_path)]) == 1
    assert "2 submission(s), 1 refused" in capsys.readouterr().out
