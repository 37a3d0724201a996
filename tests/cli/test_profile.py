"""`parlay profile`: table, rules, JSON, exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from parlay.cli import profile
from parlay.deployment import Deployment
from parlay.errors import BadRequest, ParlayError
from parlay.pairing.baseline import Baseline, save_baseline

app = typer.Typer()
profile.register(app)
app.command("other")(lambda: None)


def run(*words: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["profile", *map(str, words)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


def line(policy: str, n_prompt: int, decode_ms: float, **more: Any) -> str:
    record = {"request_id": "r", "endpoint": "chat", "policy": policy, "prompt_tokens": n_prompt}
    record |= {"generated": 50, "drafted": 20, "accepted": 12, "queue_ms": 0}
    record |= {"ttft_ms": 100, "e2e_ms": 100 + decode_ms, **more}
    return json.dumps(record)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "requests.jsonl"
    lines = [line("chat", 80, 1000, speedup=1.8)] * 9 + [line("rag", 9000, 2)] * 6
    path.write_text("\n".join(lines))
    return path


def test_routes_and_the_rules_that_follow(log: Path) -> None:
    code, out = run(log)
    assert code == 0
    assert "15 requests" in out
    text = out.split("For the deployment file:")[1]
    made = Deployment.model_validate(yaml.safe_load(text))
    assert made.routes[0].policy == "plain"
    assert made.routes[0].when.min_prompt_tokens == 9000


def test_json(log: Path) -> None:
    code, out = run(log, "--json")
    found = json.loads(out)
    assert code == 0
    assert [r["advice"] for r in found["routes"]] == ["speculate", "plain"]
    assert found["routes"][0]["token_acceptance"] == 0.6


def test_nothing_to_gain_exits_1(tmp_path: Path) -> None:
    path = tmp_path / "slow.jsonl"
    path.write_text(line("chat", 4000, 1.0) + "\n")
    assert run(path, "--speedup", "1.0")[0] == 1


def test_a_file_without_requests_is_said_to_be_none(tmp_path: Path) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_text("{}\n")
    with pytest.raises(BadRequest, match="no request in 1 lines"):
        run(path)


def test_a_measured_pair_gives_the_speedup(
    log: Path,
    tiny_llama: Path,
    tiny_drafter: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PARLAY_CACHE", str(tmp_path / "cache"))
    plain = tmp_path / "plain.jsonl"
    plain.write_text("\n".join([line("chat", 80, 1000, drafted=0)] * 5))
    pair = ("--target", tiny_llama, "--draft", tiny_drafter)
    with pytest.raises(BadRequest, match="was not measured"):
        run(plain, *pair)
    with pytest.raises(BadRequest, match="needs both"):
        run(plain, "--target", tiny_llama)
    for name in ("nofile", "nofile.gguf", plain):
        with pytest.raises(ParlayError, match=Path(name).stem):
            run(plain, "--target", name, "--draft", tiny_drafter)
        with pytest.raises(ParlayError, match=Path(name).stem):
            run(plain, "--target", tiny_llama, "--draft", name)
    gains = {"1": 1.2, "4": 2.5}
    known = Baseline("m", 100, 4, 0.7, 2.5, 0.1, {}, (0.7,), gains, {})
    save_baseline(tiny_llama, tiny_drafter, known)
    code, out = run(plain, *pair, "--json")
    assert (code, json.loads(out)["routes"][0]["speedup"]) == (0, 2.5)
