"""`parlay pair`: verdicts, measurement, manifest."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from parlay.cli import pair
from parlay.errors import BadRequest, ModelUnavailable
from parlay.models import BLOCK_DRAFTER, DEFAULT_DRAFTER, SHIPPED_DRAFTERS
from parlay.pairing.baseline import load_baseline

app = typer.Typer()
pair.register(app)


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARLAY_CONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("PARLAY_CACHE", str(tmp_path / "cache"))


def run(*words: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["pair", *map(str, words)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    path = tmp_path / "suite.jsonl"
    rows = [{"prompt": "the and in", "category": "a"}, {"prompt": "x" * 9999, "category": "b"}]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def test_an_identical_pair(tiny_llama: Path, tiny_drafter: Path) -> None:
    code, out = run("check", tiny_llama, tiny_drafter)
    assert code == 0
    assert out.startswith("identical")
    assert "12 of 12 samples" in out


def test_an_incompatible_pair_exits_1_and_shows_why(
    tiny_llama: Path, tiny_other_vocab: Path
) -> None:
    code, out = run("check", tiny_llama, tiny_other_vocab, "--measure")
    assert code == 1
    assert "'an' and 'ou'" in out
    assert "harmful" in out
    assert "token acceptance" not in out


def test_a_pair_of_two_vocabularies_is_measured_through_text(
    tiny_llama: Path, tiny_other_vocab: Path, suite: Path
) -> None:
    options = ("--cycles", "2", "-k", "4", "-n", "16", "--suite", suite, "-c", "512")
    more = ("--translate", "--measure", "--threads", "1")
    code, out = run("check", tiny_llama, tiny_other_vocab, *options, *more)
    assert code == 0
    assert out.startswith("incompatible") and "through text" in out
    known = load_baseline(tiny_llama, tiny_other_vocab)
    assert known is not None and known.draft_cost > 0
    assert "token acceptance" in out


def test_json(tiny_llama: Path, tiny_other_vocab: Path) -> None:
    code, out = run("check", tiny_llama, tiny_other_vocab, "--json")
    found = json.loads(out)
    assert (code, found["verdict"], found["measured"]) == (1, "incompatible", None)


def test_a_measurement_is_shown_stored_and_recorded(
    tiny_llama: Path, tiny_drafter: Path, suite: Path
) -> None:
    options = ("--cycles", "3", "-k", "4", "-n", "16", "--suite", suite, "-c", "512")
    code, out = run("check", tiny_llama, tiny_drafter, "--measure", "--threads", "1", *options)
    assert code == 0
    assert "token acceptance" in out
    assert re.search(r"^ +4 +\d+\.\d\dx", out, re.MULTILINE)
    known = load_baseline(tiny_llama, tiny_drafter)
    assert known is not None
    assert (known.cycles, known.window) == (2, 4)  # one prompt was too long
    assert 0.3 < known.token_acceptance <= 1
    assert known.by_category == {"a": known.token_acceptance}
    assert known.first_by_category == {"a": known.first_token} == {"a": known.by_position[0]}
    assert known.length_by_category == {"a": known.acceptance_length}
    assert re.search(r"^a +\d+\.\d% +\d+\.\d% +\d\.\d\d", out, re.MULTILINE)
    assert set(known.speedups) == set(known.break_even) == {"1", "2", "3", "4"}
    code, out = run("add", tiny_llama, tiny_drafter, "--notes", "hi")
    assert code == 0
    assert "1 measured" in out


def test_the_manifest_round(tiny_llama: Path, tiny_drafter: Path) -> None:
    run("add", tiny_llama, tiny_drafter)
    code, out = run("list", "--json")
    assert code == 0
    assert [p["drafter"]["name"] for p in json.loads(out)] == [
        "drafter.gguf",
        DEFAULT_DRAFTER.name,
        BLOCK_DRAFTER.name,
    ]
    assert run("list")[1].count("shipped") == 2
    assert "sha256" in run("show", "drafter.gguf")[1]
    assert run("show", "nothing of that name")[0] == 1
    code, out = run("verify")
    assert (code, out.count("ok")) == (0, 2)


def test_verify_exits_1_where_a_file_changed(
    tiny_llama: Path, tiny_drafter: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(tiny_drafter.read_bytes())
    run("add", tiny_llama, copy)
    copy.unlink()
    code, out = run("verify", "--json")
    assert code == 1
    assert {"name": "copy.gguf", "problem": "is gone"} in json.loads(out)


def test_an_incompatible_pair_is_not_recorded(tiny_llama: Path, tiny_other_vocab: Path) -> None:
    with pytest.raises(BadRequest, match="cannot draft for"):
        run("add", tiny_llama, tiny_other_vocab)


def test_a_pair_is_recorded_by_names(
    tiny_llama: Path, tiny_drafter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parlay.models.default_model", lambda _say: tiny_llama)
    monkeypatch.setitem(SHIPPED_DRAFTERS, "default", tiny_drafter)
    code, out = run("add", "default", "default", "--json")
    found = json.loads(out)
    assert (code, found["target"]["name"]) == (0, tiny_llama.name)
    assert found["drafter"]["name"] == tiny_drafter.name
    with pytest.raises(ModelUnavailable, match="nobody-has-this"):
        run("add", "default", "nobody-has-this")
