from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from parlay.cli import plan
from parlay.errors import BadRequest

app = typer.Typer()
plan.register(app)


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["--concurrency", *(str(a) for a in arguments)])


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "requests.jsonl"
    lines = [
        {"time": 1_767_225_600 + 0.3 * i, "usage": {"prompt_tokens": 80, "completion_tokens": 40}}
        for i in range(60)
    ]
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path


def test_the_table_of_streams_is_shown() -> None:
    ran = call("--costs", "gpu-27b-q5_0", "--acceptance", 0.7)
    assert ran.exit_code == 0
    assert "speed-up" in ran.stdout and "measured for one sequence only" in ran.stdout


def test_json_has_every_figure(log: Path) -> None:
    ran = call(
        "--costs", "gpu-27b-q5_0", "--acceptance", 0.7, "--log", log, "--slots", 8,
        "--ttft-goal", 400, "--tpot-goal", 30, "--json",
    )  # fmt: skip
    told = json.loads(ran.stdout)
    assert told["streams"][0]["streams"] == 1 and told["streams"][0]["speedup"] > 1
    assert {fleet["way"] for fleet in told["fleets"]} == {"plain", "speculative"}
    assert all(fleet["goals_kept"] for fleet in told["fleets"])
    plain, bet = told["fleets"]
    assert bet["machines"] <= plain["machines"]
    assert told["log"]["requests"] == 60


def test_more_traffic_needs_more_machines(log: Path) -> None:
    def machines(times: int) -> int:
        ran = call(
            "--costs", "gpu-27b-q5_0", "--acceptance", 0.7, "--log", log, "--ttft-goal", 300,
            "--slots", 4, "--times", times, "--json",
        )  # fmt: skip
        return int(json.loads(ran.stdout)["fleets"][0]["machines"])

    assert machines(1) < machines(8)


def test_where_no_draft_pays_the_answer_is_no() -> None:
    ran = call("--costs", "gpu-27b-q5_0", "--acceptance", 0.0)
    assert ran.exit_code == 1 and "no draft pays" in ran.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("--costs", "nothing"),
        ("--costs", "gpu-27b-q5_0", "--proposer", "oracle"),
        ("--costs", "gpu-27b-q5_0", "--acceptance", "0.5", "--log", "/nowhere.jsonl"),
    ],
)
def test_bad_use_is_one_line(arguments: tuple[str, ...]) -> None:
    error = call(*arguments).exception
    assert isinstance(error, BadRequest) and "\n" not in error.message


def test_a_log_without_times_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"usage": {"prompt_tokens": 8, "completion_tokens": 4}}\n')
    error = call("--costs", "gpu-27b-q5_0", "--acceptance", 0.5, "--log", path).exception
    assert isinstance(error, BadRequest) and "time" in error.message
