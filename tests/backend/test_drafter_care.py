"""The drafter comes late, fails, is given up and comes back; answers never stop."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from parlay.backend.drafter_care import LOADER
from parlay.backend.opening import needed_gb
from parlay.decoding.round import Fallback
from parlay.deployment import DeploymentError, MonitoringSection, load_deployment
from parlay.engine.start import Loader
from parlay.errors import DecodeError, LoadError
from tests import tiny_drafters, tiny_models
from tests.front.running import Running, running
from tests.serving import PATIENCE_S, wait_for

BODY: dict[str, Any] = {"prompt": "hello", "max_tokens": 40, "temperature": 0}


def ask(server: Running, **more: Any) -> dict[str, Any]:
    answer = httpx.post(f"{server.url}/v1/completions", json={**BODY, **more})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_the_target_answers_while_the_drafter_loads(
    target: Path, drafter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    load = Loader.draft_model

    def slow(*args: Any, **options: Any) -> Any:
        assert go_on.wait(PATIENCE_S)
        return load(*args, **options)

    monkeypatch.setattr(Loader, "draft_model", slow)
    with running(target, model__drafter=str(drafter)) as server:
        early = ask(server)
        assert early["speculation"]["fallbacks"].keys() == {"drafter_loading"}
        assert httpx.get(f"{server.url}/health").json()["drafter"] == "loading"
        go_on.set()
        wait_for(lambda: server.drafter == "ready")
        late = ask(server)
    assert late["speculation"]["drafted"] > 0
    assert late["choices"][0]["text"] == early["choices"][0]["text"]


def test_the_thread_that_loads_ends(target: Path, drafter: Path) -> None:
    """OpenMP keeps threads of its own for it as long as it lives, which slows every pass."""
    with running(target, model__drafter=str(drafter)) as server:
        wait_for(lambda: server.drafter == "ready")
        wait_for(lambda: not any(t.name.startswith(LOADER) for t in threading.enumerate()))


@pytest.mark.parametrize("kind", ["missing", "garbage", "vocabulary"])
def test_a_drafter_that_cannot_be_loaded_leaves_plain_decoding(
    target: Path, tiny_other_vocab: Path, tmp_path: Path, kind: str
) -> None:
    path = {"missing": tmp_path / "no.gguf", "vocabulary": tiny_other_vocab}.get(
        kind, tmp_path / "garbage.gguf"
    )
    if kind == "garbage":
        path.write_bytes(b"GGUF" + b"\xff" * 100)
    with running(target, model__drafter=str(path)) as server:
        wait_for(lambda: server.drafter == "absent")
        reason = "vocab" if kind == "vocabulary" else "draft_error"
        answer = ask(server)
        assert answer["speculation"]["fallbacks"].keys() == {reason}
        state = httpx.get(f"{server.url}/metrics/speculative").json()
        assert state["drafter"]["reason"] == reason
        assert [alert["kind"] for alert in state["alerts"]] == ["drafter"]
        assert str(tmp_path) not in httpx.get(f"{server.url}/metrics/speculative").text


def test_a_drafter_that_runs_out_of_memory_says_memory(
    target: Path, drafter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: Any, **_options: Any) -> None:
        raise LoadError("no context: failed to allocate memory")

    monkeypatch.setattr(Loader, "draft_model", fail)
    with running(target, model__drafter=str(drafter)) as server:
        wait_for(lambda: server.drafter == "absent")
        assert ask(server)["speculation"]["fallbacks"].keys() == {"memory"}


def test_a_drafter_that_breaks_mid_answer_loses_no_answer(target: Path, drafter: Path) -> None:
    with running(target, model__drafter=str(drafter)) as server:
        wait_for(lambda: server.drafter == "ready")
        whole = ask(server)
        proposer: Any = server.host.engine.drafts.proposers["model"]
        calls = 0
        good = proposer._model.decode

        def sometimes(spans: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls % 7 == 0:
                raise DecodeError("no memory for the drafter's pass", code=-3)
            return good(spans)

        proposer._model.decode = sometimes
        broken = ask(server)
    assert broken["choices"][0]["text"] == whole["choices"][0]["text"]
    assert broken["speculation"]["fallbacks"]["draft_error"] > 0
    assert broken["speculation"]["drafted"] > 0


def test_under_pressure_the_drafter_goes_and_comes_back(
    target: Path, drafter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = 50.0
    real = psutil.virtual_memory()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: real._replace(percent=used))
    monkeypatch.setattr(MonitoringSection, "memory_pressure_pct", 90)
    with running(target, model__drafter=str(drafter)) as server:
        wait_for(lambda: server.drafter == "ready")
        used = 95.0
        wait_for(lambda: server.drafter == "absent")
        answer = ask(server)["speculation"]
        assert answer["fallbacks"].keys() == {"memory"} and answer["policy"] == "memory"
        assert ask(server, speculation=True)["speculation"]["fallbacks"].keys() == {"memory"}
        wait_for(lambda: "memory_pressure" in server.service.alerts.active)
        used = 80.0
        wait_for(lambda: server.drafter == "ready")
        assert ask(server)["speculation"]["drafted"] > 0


def test_a_budget_that_holds_only_the_target_refuses_the_drafter(
    target: Path, drafter: Path
) -> None:
    given = {"model.target": str(target), "runtime.context_size": 512, "runtime.slots": 2}
    deployment = load_deployment(environ={}, overrides=given)
    alone, both = needed_gb(deployment), needed_gb(deployment, [drafter])
    assert alone < both
    with (
        pytest.raises(LoadError, match="the limit is"),
        running(target, runtime__vram_budget_gb=alone / 2),
    ):
        pass
    budget = (alone + both) / 2
    with running(target, model__drafter=str(drafter), runtime__vram_budget_gb=budget) as server:
        wait_for(lambda: server.figures()["drafter"]["reason"] == Fallback.MEMORY.value)
        assert ask(server)["speculation"]["fallbacks"].keys() == {"memory"}


def test_a_tokenizer_file_must_match(target: Path, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    texts = tiny_models.VOCABULARY.tokens
    good.write_text(json.dumps({"model": {"vocab": {t: i for i, t in enumerate(texts)}}}))
    bad.write_text(json.dumps(tiny_models.OTHER_TEXTS.tokens))
    with running(target, model__tokenizer=str(good)) as server:
        assert ask(server)
    with (
        pytest.raises(DeploymentError, match="does not match the target: token"),
        running(target, model__tokenizer=str(bad)),
    ):
        pass
    shutil.rmtree(tmp_path)


def test_a_head_in_the_targets_own_file_drafts_though_nobody_named_it(tmp_path: Path) -> None:
    target = tiny_drafters.few_words(tiny_drafters.write_nextn(tmp_path / "target.gguf"))
    given = {"runtime__context_size": "auto", "runtime__speculative_window": 3}
    with running(target, model__drafter="auto", **given) as server:
        wait_for(lambda: server.drafter == "ready")
        assert server.service.backend.facts.context_size == 512
        assert ask(server)["speculation"]["drafted"] > 0
