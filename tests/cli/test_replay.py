from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from parlay.cli import replay
from parlay.errors import BadRequest

app = typer.Typer()
replay.register(app)


@app.callback()
def root() -> None:
    """So that the verb keeps its name."""


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["replay", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_a_replay_as_json_answers_the_four_questions() -> None:
    found = json.loads(run("chat", "--costs", "cpu-q4_0", "--draft", "suffix", "--json"))
    (result,) = found["results"]
    rates = result["tokens_per_second"]
    assert rates["plain"] <= rates["controller"] * 1.02 <= rates["oracle"] * 1.02
    assert "suffix-5" in result["fixed_tokens_per_second"]
    assert result["costs"] == "cpu-q4_0"


def test_a_replay_for_people_is_a_table() -> None:
    output = run("math", "--costs", "gpu-27b-q5_0", "--drafter-share", "0.05", "--fresh")
    assert "plain" in output and "oracle" in output


def test_any_rule_can_be_replayed() -> None:
    output = run(
        "chat", "--costs", "cpu-f16", "--controller", "tiers", "--draft", "model", "--json"
    )
    (result,) = json.loads(output)["results"]
    rates = result["tokens_per_second"]
    assert 0 < rates["controller"] <= rates["oracle"] * 1.02
    assert result["costs"] == "cpu-f16"


@pytest.mark.parametrize(
    "wrong",
    [
        ("nothing-here",),
        ("chat", "--costs", "nowhere"),
        ("chat", "--controller", "magic"),
        ("chat", "--draft", "oracle"),
        ("chat", "--draft", ","),
    ],
)
def test_bad_use_is_refused_with_what_to_do(wrong: tuple[str, ...]) -> None:
    with pytest.raises(BadRequest):
        run(*wrong)


def test_files_of_ones_own_are_read(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    header = {"parlay_recording": 1}
    answer = {"id": "a", "category": "own", "n_prompt": 3, "finish_reason": "stop"}
    answer["drafts"] = {"suffix": [[1, [900, 800]], [0, []], [0, [100]]]}
    path.write_text(f"{json.dumps(header)}\n{json.dumps(answer)}\n")
    found = json.loads(run(str(path), "--costs", "cpu-q8_0", "--draft", "suffix", "--json"))
    assert found["results"][0]["tokens"] == 3
