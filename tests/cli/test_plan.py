"""`parlay plan`: table, JSON, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from parlay.cli import plan
from parlay.errors import BadRequest

app = typer.Typer()
plan.register(app)
app.command("other")(lambda: None)  # one command alone would lose its name


def run(*words: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["plan", *map(str, words)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


def test_a_pair_that_fits(tiny_llama: Path, tiny_drafter: Path) -> None:
    code, out = run(tiny_llama, "--draft", tiny_drafter)
    assert code == 0
    assert "fits" in out
    assert out.count("weights") == 2
    assert "·" in out  # the bar has room


def test_a_pair_that_does_not_fit(tiny_llama: Path, tiny_drafter: Path) -> None:
    words = ("-c", "16384", "--vram-budget-gb", "0.03", "--json")
    code, out = run(tiny_llama, "--draft", tiny_drafter, *words)
    record = json.loads(out)
    assert (code, record["verdict"]) == (1, "does not fit")
    assert record["ram"]["needed"] == sum(item["bytes"] for item in record["items"])
    assert any(p["option"].startswith("--context-size") for p in record["proposals"])


def test_a_gpu_can_be_pretended(tiny_llama: Path) -> None:
    code, out = run(tiny_llama, "--gpu-gb", "24", "--json")
    record = json.loads(out)
    assert (code, record["verdict"]) == (0, "fits")
    assert record["gpu"]["free"] == 24 << 30
    assert {item["place"] for item in record["items"]} == {"gpu", "ram"}


def test_passes_are_wide_where_a_gpu_has_room_and_nobody_said_how_wide(tiny_llama: Path) -> None:
    def compute(*words: str) -> int:
        items = json.loads(run(tiny_llama, "--gpu-gb", "24", *words, "--json")[1])["items"]
        return sum(i["bytes"] for i in items if (i["what"], i["place"]) == ("compute", "gpu"))

    assert (
        compute()
        == compute("--set", "runtime.llama.batch-size=1024")
        > compute("--set", "runtime.llama.batch-size=512")
    )
    assert compute("--set", "runtime.llama.ubatch-size=512") == compute(
        "--set", "runtime.llama.batch-size=512"
    )


def test_a_shipped_drafter_is_planned_by_its_name_with_the_layers_it_reads(
    tiny_llama: Path,
) -> None:
    code, out = run(tiny_llama, "--draft", "default-block", "--json")
    items = json.loads(out)["items"]
    assert code == 0
    assert "drafter" in {item["model"] for item in items}
    sizes = [item["bytes"] for item in items if item["what"] == "features"]
    assert sizes == [5 * 512 * 64 * 4] * 2


def test_a_log_tells_what_a_workload_could_gain(tmp_path: Path) -> None:
    row = {"request_id": "r", "endpoint": "chat", "policy": "chat", "prompt_tokens": 10}
    row |= {"generated": 50, "drafted": 20, "accepted": 12, "ttft_ms": 10, "e2e_ms": 500}
    log = tmp_path / "requests.jsonl"
    log.write_text("\n".join([json.dumps(row | {"speedup": 2.0})] * 6 + ["nonsense"]))
    code, out = run("--log", log, "--json")
    told = json.loads(out)
    assert (code, told["requests"], told["skipped_lines"]) == (0, 6, 1)
    assert told["routes"][0]["advice"] == "speculate" and told["rules"] == []
    log.write_text("\n".join([json.dumps(row | {"e2e_ms": 10.1})] * 6))
    code, out = run("--log", log)
    assert code == 1 and "policy: plain" in out
    log.write_text("{}")
    with pytest.raises(BadRequest, match="no request in 1 lines"):
        run("--log", log)
