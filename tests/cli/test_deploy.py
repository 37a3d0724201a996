from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from parlay.cli import deploy
from parlay.deployment import DeploymentError
from parlay.errors import BadRequest
from parlay.rendering.launch import RenderError

app = typer.Typer()
deploy.register(app)

FILE = "model: {target: /m/big.gguf, drafter: suffix}\nruntime: {speculative_window: 3}\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "deploy.yaml"
    made.write_text(FILE)
    return made


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["deploy", "render", *(str(a) for a in arguments)])


def test_the_command_is_printed(path: Path) -> None:
    ran = call(path, "--engine", "llama-server")
    assert ran.exit_code == 0
    assert "exec llama-server" in ran.stdout and "--spec-draft-n-max 3" in ran.stdout


def test_json_says_what_was_not_carried_over(path: Path) -> None:
    told = json.loads(call(path, "-e", "llama-server", "-f", "systemd", "--json").stdout)
    assert {"engine", "commands", "carried", "not_carried", "files", "format"} <= set(told)
    assert list(told["files"]) == ["big-server.service"]


def test_files_are_written(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    ran = call(path, "-e", "llama-server", "-f", "compose", "--out", folder)
    assert ran.stdout.split() == [str(folder / "compose.yaml")]
    assert (folder / "compose.yaml").is_file()


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (("--engine", "tgi"), RenderError),
        (("--engine", "vllm"), RenderError),  # a GGUF file
        (("--set", "scale.nodes=0"), DeploymentError),
        (("--set", "scale.nodes"), DeploymentError),
        (("--set", "scale.head={"), DeploymentError),
        (("--engine", "llama-server", "--out", "/proc/nowhere"), BadRequest),
    ],
)
def test_bad_use_is_one_line(path: Path, arguments: tuple[str, ...], kind: type) -> None:
    error = call(path, *arguments).exception
    assert isinstance(error, kind) and isinstance(error, BadRequest)
    assert "\n" not in error.message
