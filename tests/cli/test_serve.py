"""`parlay serve`: a deployment file, a model by its name, or nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from parlay.cli.main import app
from parlay.cli.serve import deployment_file
from tests.serving import PATIENCE_S


def check(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["serve", *map(str, arguments), "--check", "--json"])


def test_a_model_may_be_named_where_a_deployment_may(tiny_llama: Path) -> None:
    assert json.loads(check(tiny_llama, "-c", 256, "--draft", "suffix").stdout)["ok"]


def test_a_deployment_is_still_a_deployment(tiny_llama: Path, tmp_path: Path) -> None:
    file = tmp_path / "deploy"
    file.write_text(f"model: {{target: {tiny_llama}, drafter: suffix}}")
    assert json.loads(check(file, "-c", 256).stdout)["ok"]


CHOSEN_TWICE = """
import logging
from parlay.cli.main import app
app(["list", "--json"], standalone_mode=False)
for _ in range(2):
    logging.getLogger("parlay.chosen").info("draft: this one")
"""


def test_what_was_chosen_is_told_once() -> None:
    """A command that opens a model several times chooses its drafter as often."""
    command = [sys.executable, "-c", CHOSEN_TWICE]
    told = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert told.stderr.count("parlay: draft: this one") == 1


def test_two_models_are_one_too_many(tiny_llama: Path) -> None:
    assert "name one" in str(check(tiny_llama, "-m", tiny_llama).exception)


@pytest.mark.parametrize(
    ("text", "is_file"),
    [("deploy.yaml", True), ("d.yml", True), ("m.gguf", False), ("org/repo:Q4_0", False)],
)
def test_what_is_meant_is_told_by_its_ending(text: str, is_file: bool) -> None:
    assert (deployment_file(text) is not None) == is_file


def test_a_name_that_nobody_knows_is_one_line() -> None:
    found = json.loads(check("nobody-has-this").stdout)
    assert not found["ok"] and "parlay list --find" in found["problem"]


def test_a_check_fetches_nothing() -> None:
    found = json.loads(check("acme/Tiny-GGUF:Q4_0").stdout)
    assert found["problem"] == (
        "acme/Tiny-GGUF:Q4_0 is not on this machine; parlay pull acme/Tiny-GGUF:Q4_0"
    )


def test_a_file_that_is_no_model_is_no_drafter_and_no_target(
    tiny_llama: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.gguf"
    other.write_text("hello")
    done = check(tiny_llama, "-c", 256, "--draft", other)
    problem = json.loads(done.stdout)["problem"]
    assert done.exit_code == 1
    assert problem.startswith("model.drafter: ") and "not a GGUF file" in problem
    done = check(other)
    assert done.exit_code == 1 and "not a GGUF file" in json.loads(done.stdout)["problem"]
