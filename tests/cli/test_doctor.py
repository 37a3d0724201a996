"""`parlay doctor`: every item, its three answers, and its forms."""

from __future__ import annotations

import json
import os
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from parlay.cli import doctor
from parlay.cli.doctor import CHECKS, Finding
from parlay.errors import BadRequest
from parlay.llama.facts import read_facts
from parlay.pairing.manifest import user_manifest
from parlay.planning.devices import GIB, MemoryPool
from tests import tiny_models
from tests.bench.recorded import Recorded, serve

app = typer.Typer()
doctor.register(app)
app.command("other")(lambda: None)


@pytest.fixture(autouse=True)
def quiet_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARLAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))


@pytest.fixture
def pair(tmp_path: Path, tiny_llama: Path, tiny_drafter: Path) -> tuple[Path, Path]:
    copies = tmp_path / "target.gguf", tmp_path / "drafter.gguf"
    for src, dst in zip((tiny_llama, tiny_drafter), copies, strict=True):
        shutil.copyfile(src, dst)
    return copies


@pytest.fixture
def log(tmp_path: Path) -> Path:
    record = {"request_id": "r", "endpoint": "chat", "policy": "chat", "prompt_tokens": 10}
    record |= {"generated": 50, "drafted": 20, "accepted": 12, "queue_ms": 0}
    record |= {"ttft_ms": 10, "e2e_ms": 500, "speedup": 2.0}
    path = tmp_path / "requests.jsonl"
    path.write_text("\n".join([json.dumps(record)] * 6))
    return path


@pytest.fixture
def content(pair: tuple[Path, Path], log: Path) -> dict[str, Any]:
    """A deployment without a fault."""
    return {
        "model": {"target": str(pair[0]), "drafter": str(pair[1])},
        "runtime": {
            "context_size": 512,
            "slots": 1,
            "vram_budget_gb": 1,
            "min_token_acceptance": 0.5,
            "fallback_threshold_pct": 15,
        },
        "monitoring": {"request_log": str(log)},
    }


def written(folder: Path, content: dict[str, Any]) -> Path:
    path = folder / "deploy.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def finding(folder: Path, content: dict[str, Any], item: str) -> Finding:
    return next(found for found in findings(folder, content) if found.item == item)


def findings(folder: Path, content: dict[str, Any]) -> list[Finding]:
    _, out = run(written(folder, content), "--json")
    return [Finding(**row) for row in json.loads(out)["findings"]]


def run(*words: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["doctor", *map(str, words)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


def test_a_deployment_without_a_fault(tmp_path: Path, content: dict[str, Any]) -> None:
    code, out = run(written(tmp_path, content))
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["ok"] * (len(CHECKS) + 1)


CHANGES: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "no room": ("memory", {"vram_budget_gb": 0.003}, "fail", "try --draft suffix"),
    "no budget": ("memory", {"vram_budget_gb": None}, "warn", "vram_budget_gb"),
    "no thresholds": (
        "thresholds",
        {"min_token_acceptance": None, "controller": "fixed"},
        "warn",
        "0.4",
    ),
    "no thresholds where time decides": ("thresholds", {"min_token_acceptance": None}, "ok", ""),
    "insane threshold": ("thresholds", {"min_token_acceptance": 0.99}, "fail", "between"),
    "a gate on whole drafts": (
        "thresholds",
        {"min_sequence_acceptance": 0.6, "speculative_window": 5},
        "warn",
        "59% whole drafts",
    ),
    "no alert": (
        "fallback alert",
        {"fallback_threshold_pct": None, "controller": "fixed"},
        "warn",
        "such as 15",
    ),
    "no alert where time decides": ("fallback alert", {"fallback_threshold_pct": None}, "ok", ""),
    "beyond training": ("cache", {"context_size": 1024}, "fail", "to 512"),
    "too many threads": ("threads", {"threads": 999}, "fail", "spin"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_faults_of_the_runtime_section(tmp_path: Path, content: dict[str, Any], name: str) -> None:
    item, change, status, todo = CHANGES[name]
    content["runtime"] |= change
    found = finding(tmp_path, content, item)
    assert found.status == status
    assert todo in found.todo


def test_faults_of_monitoring(tmp_path: Path, content: dict[str, Any]) -> None:
    content["monitoring"] = {"alert_on_acceptance_drop": False}
    assert finding(tmp_path, content, "fallback alert").status == "warn"
    assert finding(tmp_path, content, "workload").status == "warn"
    content["monitoring"] = {"cache_compaction_interval": 0}
    content["runtime"]["context_full"] = "slide"
    assert finding(tmp_path, content, "cache").status == "warn"
    content["monitoring"] = {"request_log": str(tmp_path / "none.jsonl")}
    assert "0 requests" in finding(tmp_path, content, "workload").found


def test_a_workload_that_cannot_gain(tmp_path: Path, content: dict[str, Any], log: Path) -> None:
    slow = log.read_text().replace('"e2e_ms": 500', '"e2e_ms": 10.1')
    log.write_text(slow)
    found = finding(tmp_path, content, "workload")
    assert found.status == "warn"
    assert "chat/chat" in found.todo


def test_another_vocabulary(
    tmp_path: Path, content: dict[str, Any], tiny_other_vocab: Path
) -> None:
    content["model"]["drafter"] = str(tiny_other_vocab)
    found = finding(tmp_path, content, "tokenizer")
    assert found.status == "fail"
    assert "'an' and 'ou'" in found.found


def test_a_tokenizer_file_must_be_the_target_s(tmp_path: Path, content: dict[str, Any]) -> None:
    path = tmp_path / "tokenizer.json"
    content["model"]["tokenizer"] = str(path)
    tokens = tiny_models.VOCABULARY.tokens
    forms: tuple[Any, ...] = (
        tokens,
        {text: i for i, text in enumerate(tokens)},
        {"model": {"vocab": [[text, 0.0] for text in tokens]}},
        {
            "model": {"vocab": {text: i for i, text in enumerate(tokens) if i > 2}},
            "added_tokens": [{"id": 0, "content": tokens[0]}],
        },
    )
    for form in forms:
        path.write_text(json.dumps(form))
        assert finding(tmp_path, content, "tokenizer").status == "ok"
    for wrong in (["x"], {"a": 1}, {}, {"a": 99999}, [], "x"):
        path.write_text(json.dumps(wrong))
        assert finding(tmp_path, content, "tokenizer").status == "fail"
    path.write_text("{")
    assert "not JSON" in finding(tmp_path, content, "tokenizer").found


def test_what_nobody_set_or_measured_yet_is_no_failure(
    tmp_path: Path, content: dict[str, Any]
) -> None:
    content["monitoring"] = {}
    for key in ("vram_budget_gb", "min_token_acceptance", "fallback_threshold_pct"):
        del content["runtime"][key]
    code, out = run(written(tmp_path, content))
    assert code == 0, out
    assert "unprofitable ones are normal" in out


def test_without_a_draft_model_nothing_is_to_be_aligned(
    tmp_path: Path, content: dict[str, Any]
) -> None:
    content["model"]["drafter"] = "suffix"
    for item in ("tokenizer", "memory"):
        assert finding(tmp_path, content, item).status == "ok"


def test_a_reasoning_model_needs_a_rule(
    tmp_path: Path, content: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    item = "reasoning policy"
    assert "rule reasoning" in finding(tmp_path, content, item).found
    content["routes"] = [{"name": "all"}]
    assert "does not reason" in finding(tmp_path, content, item).found

    def thinking(path: Path) -> Any:
        import dataclasses

        return dataclasses.replace(read_facts(path), chat_template="<think>")

    monkeypatch.setattr(doctor, "read_facts", thinking)
    assert finding(tmp_path, content, item).status == "warn"


def test_the_machine(
    tmp_path: Path, content: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = MemoryPool("RTX", "gpu", 24 * GIB, 20 * GIB, n_processes=2)
    monkeypatch.setattr(doctor, "pools", lambda: [gpu])
    monkeypatch.setattr("parlay.llama.library.has_gpu", lambda: False)
    assert "2 other processes" in finding(tmp_path, content, "GPU").found
    assert finding(tmp_path, content, "engine").status == "fail"
    monkeypatch.setattr(doctor, "pools", list)
    monkeypatch.setattr(doctor, "features", frozenset)
    assert finding(tmp_path, content, "engine").status == "warn"
    monkeypatch.setattr(doctor, "features", lambda: frozenset({"AVX512"}))
    assert finding(tmp_path, content, "engine").status == "ok"
    monkeypatch.setattr(doctor, "may_rearrange", lambda: False)
    assert "leaves those kernels out" in finding(tmp_path, content, "engine").todo
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1))
    assert finding(tmp_path, content, "disk").status == "fail"
    monkeypatch.setattr(os, "getloadavg", lambda: (99.0, 0.0, 0.0))
    assert finding(tmp_path, content, "threads").status == "warn"


def test_missing_files_fail_their_items_only(tmp_path: Path, content: dict[str, Any]) -> None:
    content["model"]["drafter"] = "gone.gguf"
    found = {f.item: f.status for f in findings(tmp_path, content)}
    bad = {item for item, status in found.items() if status == "fail"}
    assert bad == {"memory", "tokenizer"}


def test_json_and_junit(tmp_path: Path, content: dict[str, Any]) -> None:
    content["runtime"] |= {"threads": 999, "vram_budget_gb": None}
    junit = tmp_path / "out.xml"
    code, out = run(written(tmp_path, content), "--json", "--junit", junit)
    report = json.loads(out)
    assert (code, report["ok"]) == (1, False)
    assert set(report["findings"][0]) == {"item", "status", "found", "todo"}
    suite = ET.parse(junit).getroot()
    assert (suite.get("failures"), suite.get("tests")) == ("1", str(len(report["findings"])))
    (failed,) = (case for case in suite if case.find("failure") is not None)
    assert failed.get("name") == "threads"


def test_control_characters_do_not_break_the_xml() -> None:
    text = doctor.junit_xml([Finding("x", "fail", "a\x00b<&", "")])
    assert ET.fromstring(text).find("testcase/failure") is not None


def test_bad_use(tmp_path: Path, content: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="no deployment file"):
        run(tmp_path / "none.yaml")
    with pytest.raises(BadRequest, match="cannot be written"):
        run(written(tmp_path, content), "--junit", tmp_path)


def test_without_a_file_the_defaults_are_examined(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARLAY_MODEL_TARGET", str(tiny_llama))
    done = CliRunner().invoke(app, ["doctor", "--json"])
    items = {row["item"] for row in json.loads(done.stdout)["findings"]}
    assert {"memory", "threads", "engine"} <= items


def test_a_pair_that_fits_is_recorded_and_hashed_again(
    tmp_path: Path, pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARLAY_CONFIG", str(tmp_path / "config"))
    code, out = run(pair[0], "--draft", pair[1], "--set", "runtime.context_size=256", "--record")
    assert code == 0 and "recorded: target.gguf + drafter.gguf" in out
    assert user_manifest().pairs[0].verdict == "identical"
    pair[1].write_bytes(pair[1].read_bytes() + b"x")
    told = run(pair[0], "--draft", pair[1], "--set", "runtime.context_size=256")[1]
    assert "drafter.gguf has changed" in told


def test_remote_servers_are_asked_how_they_are(tmp_path: Path) -> None:
    with serve(Recorded("vllm")) as url:
        pools = [
            {"name": "betting", "urls": [url], "speculative": True, "health": "/version"},
            {"name": "plain", "urls": ["http://127.0.0.1:9"]},
        ]
        code, out = run(written(tmp_path, {"engine": "endpoints", "upstreams": pools}), "--json")
    found = [(f["item"], f["status"]) for f in json.loads(out)["findings"]]
    assert code == 1 and ("upstreams", "fail") in found
    assert {("upstreams", "ok"), ("models", "ok"), ("speculative mark", "ok")} <= set(found)
