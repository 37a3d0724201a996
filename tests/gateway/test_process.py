"""The gateway as a process: draining, reload, the log, and what is written down."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.gateway.fakes import WORDS, Engine, engines
from tests.gateway.running import QUICK, gateway
from tests.gateway.test_relay import ASK, ask, stream
from tests.serving import PATIENCE_S, wait_for

SCRIPT = Path(__file__).parents[1] / "server" / "serve_once.py"


def write(path: Path, *urls: str, **more: Any) -> Path:
    content = {
        "engine": "endpoints",
        "upstreams": [{"name": "all", "urls": list(urls)}],
        "server": {"port": 0, "drain_s": PATIENCE_S},
        "gateway": QUICK["gateway"],
        **more,
    }
    path.write_text(yaml.safe_dump(content))
    return path


@contextmanager
def served(deployment: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, str(SCRIPT), str(deployment), "--json"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())["url"]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]


def test_sigterm_lets_streams_finish_and_sighup_changes_the_pool(tmp_path: Path) -> None:
    with engines(Engine("m"), Engine("m", delay_s=0.1)) as (one, other):
        path = write(tmp_path / "d.yaml", one.url)
        with served(path) as (process, url):
            assert httpx.post(f"{url}/chat/completions", json=ASK).status_code == 200
            write(path, other.url)
            process.send_signal(signal.SIGHUP)
            wait_for(lambda: bool(httpx.post(f"{url}/chat/completions", json=ASK) and other.asked))
            n = len(one.asked)
            body = {**ASK, "stream": True}
            with httpx.stream("POST", f"{url}/chat/completions", json=body) as response:
                lines = response.iter_lines()
                next(lines)
                process.send_signal(signal.SIGTERM)
                assert [line for line in lines if line][-1] == "data: [DONE]"
            assert process.wait(PATIENCE_S) == 0
            assert len(one.asked) == n


@pytest.mark.parametrize("path", ["chat/completions", "messages"])
def test_a_stream_that_is_given_up_ends_with_the_reason(tmp_path: Path, path: str) -> None:
    log = tmp_path / "log.jsonl"
    more = {"server": {"port": 0, "drain_s": 0.5}, "monitoring": {"request_log": str(log)}}
    body = {**ASK, "max_tokens": 100}
    with (
        engines(Engine("m", delay_s=PATIENCE_S)) as (one,),
        ThreadPoolExecutor(1) as pool,
        served(write(tmp_path / "d.yaml", one.url, **more)) as (process, url),
    ):
        whole = pool.submit(httpx.post, f"{url}/{path}", json=body, timeout=PATIENCE_S)
        wait_for(lambda: len(one.asked) == 1)
        streamed = {**body, "stream": True}
        with httpx.stream("POST", f"{url}/{path}", json=streamed) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            assert any("the server is shutting down" in line for line in lines)
        assert whole.result(PATIENCE_S).status_code == 503
        assert process.wait(PATIENCE_S) == 0
    found = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(line["status"], line["error"]) for line in found] == [(503, "shutting_down")] * 2


def test_every_request_has_a_line_in_the_log_with_the_servers_own_keys(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with engines(Engine("m"), Engine("m")) as (one, other):
        pool = {"name": "all", "urls": [one.url, other.url]}
        with gateway(pool, monitoring={"request_log": str(path)}) as running:
            ask(running)
            stream(running)
            one.mode = other.mode = "http_400"
            ask(running)
            one.mode, other.mode = "cut", "cut"
            stream(running)
            httpx.post(f"{running.url}/v1/chat/completions", content=b"{")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["status"] for line in lines] == [200, 200, 400, 502, 400]
    assert [line.get("stream") for line in lines] == [False, True, False, True, None]
    whole = lines[0]
    assert whole["generated"] == len(WORDS) and whole["prompt_tokens"] == 9
    for key in ("request_id", "drafted", "ttft_ms", "e2e_ms", "policy", "pool", "retries"):
        assert key in whole
    assert "rain?" not in path.read_text()


def test_a_reload_with_a_mistake_changes_nothing(tmp_path: Path) -> None:
    with engines(Engine("m")) as (one,):
        path = write(tmp_path / "d.yaml", one.url)
        with served(path) as (process, url):
            path.write_text("engine: endpoints")
            process.send_signal(signal.SIGHUP)
            root = url.removesuffix("/v1")

            def told() -> bool:
                alerts = httpx.get(f"{root}/metrics/speculative").json()["alerts"]
                return any(alert["kind"] == "reload" for alert in alerts)

            wait_for(told)
            assert httpx.post(f"{url}/chat/completions", json=ASK).status_code == 200


def test_slots_show_every_server(tmp_path: Path) -> None:
    with engines(Engine("m")) as (one,), gateway({"name": "p", "urls": [one.url]}) as running:
        ask(running)
        (slot,) = httpx.get(f"{running.url}/slots").json()
        assert (slot["pool"], slot["state"], slot["answers"]) == ("p", "up", 1)
        assert slot["engine"] == "vllm"
        health = httpx.get(f"{running.url}/health").json()
        assert (health["status"], health["up"]) == ("ok", 1)


def test_the_page_and_its_live_figures_are_there() -> None:
    with engines(Engine("m", speculates=True)) as (one,):
        one.mode = "telling"
        with gateway({"name": "p", "urls": [one.url], "speculative": True}) as running:
            assert "<html" in httpx.get(running.url).text
            stream(running)
            ask(running)
            found = httpx.get(f"{running.url}/live").json()
            assert (found["answered"], found["model"]) == (2, "m")
            whole, chat = found["groups"]
            assert (whole["route"], chat["route"], chat["requests"]) == ("all", "chat", 2)
            assert whole["generated"] == chat["generated"] == 2 * len(WORDS)
            recent = chat["recent"]
            assert (recent["drafted"], recent["accepted"], recent["rounds"]) == (12, 6, 8)
            assert recent["acceptance_by_position"] == [1.0, 0.5]
            (last, _) = httpx.get(f"{running.url}/live/requests").json()
            url = f"{running.url}/live/requests/{last['request_id']}"
            assert httpx.get(url).json()["answers"] is None
            assert httpx.get(f"{running.url}/live/bench").status_code == 501
            with httpx.stream("GET", f"{running.url}/live/stream") as response:
                events = [line for line, _ in zip(response.iter_lines(), range(6), strict=False)]
            assert {"event: history", "event: snapshot"} <= set(events)
