"""Metrics, the request log, alerts, and what they say about one request."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from parlay.decoding.counts import Counts
from parlay.deployment import Deployment
from parlay.server.figures.observer import Recent
from parlay.server.lifecycle.monitor import Monitor
from parlay.web.alerts import Alerts
from parlay.web.request_log import RequestLog
from tests.server.running import Running, running
from tests.serving import wait_for

BODY: dict[str, Any] = {"prompt": "hello", "max_tokens": 30, "temperature": 0}


def samples(server: Running) -> dict[str, float]:
    text = httpx.get(f"{server.url}/metrics").text
    return {
        sample.name + "".join(f"|{v}" for v in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_move_with_what_the_response_says(server: Running) -> None:
    wait_for(lambda: 1 in server.service.observer.baseline.pass_s)  # what a speed-up is told by
    before = samples(server)
    answer = httpx.post(f"{server.url}/v1/completions", json=BODY).json()
    after = samples(server)
    spec = answer["speculation"]

    def moved(name: str) -> float:
        return after.get(name, 0.0) - before.get(name, 0.0)

    assert moved("parlay_drafted_tokens_total") == spec["drafted"] > 0
    assert moved("parlay_accepted_tokens_total") == spec["accepted"]
    assert moved("parlay_generated_tokens_total") == spec["generated"] == 30
    assert moved("parlay_rounds_total") == spec["rounds"]
    assert moved("parlay_requests_total|completions|200") == 1
    assert moved("parlay_time_to_first_token_seconds_count") == 1
    assert moved("parlay_inter_token_seconds_count") > 0
    assert moved("parlay_position_drafted_total|1") == sum(spec["accepted_histogram"].values())
    assert moved("parlay_seconds_total|verify") > 0
    assert after["parlay_slots"] == 8 and after["parlay_drafter_ready"] == 1
    assert after["parlay_speedup"] > 0 and after["parlay_cache_use_ratio"] > 0


def test_the_json_metrics_hold_counts_live_figures_and_state(server: Running) -> None:
    httpx.post(f"{server.url}/v1/completions", json=BODY)
    wait_for(lambda: server.service.observer.baseline.pass_s.keys() >= {1, 8})
    found = httpx.get(f"{server.url}/metrics/speculative").json()
    assert found["drafted"] >= found["accepted"] > 0
    tried = found["positions"]["1"]
    assert found["acceptance_by_position"][0] == pytest.approx(
        tried["accepted"] / tried["drafted"], abs=1e-3
    )
    assert found["mode"] == "exact" and found["exact"]["concurrent"] is True
    assert found["drafter"]["state"] == "ready"
    assert set(found["baseline_ms"]) >= {"1", "8"}
    assert 0 <= found["fallback_share"] <= 1


def test_slots_and_health_tell_the_state(server: Running) -> None:
    slots = httpx.get(f"{server.url}/slots").json()
    assert [slot["id"] for slot in slots] == list(range(8))
    assert not any(slot["is_processing"] for slot in slots)
    health = httpx.get(f"{server.url}/health").json()
    assert (health["status"], health["mode"]) == ("ok", "exact")
    assert health["exact_class"] == server.service.engine.exact_name
    assert health["exact_cost_percent"] >= 0.0


def test_tokens_go_there_and_back(server: Running) -> None:
    tokens = httpx.post(f"{server.url}/tokenize", json={"content": "hello the sea"}).json()
    text = httpx.post(f"{server.url}/detokenize", json=tokens).json()
    assert text == {"content": "hello the sea"}
    pieces = httpx.post(
        f"{server.url}/tokenize", json={"content": " the", "with_pieces": True}
    ).json()
    assert [token["piece"] for token in pieces["tokens"]] == [" the"]


def test_the_request_log_has_a_line_per_request_and_no_prompt(target: Path, tmp_path: Path) -> None:
    path = tmp_path / "logs" / "requests.jsonl"
    with running(target, monitoring__request_log=str(path)) as server:
        secret = {**BODY, "prompt": "my secret"}
        whole = httpx.post(f"{server.url}/v1/completions", json=secret).json()
        with httpx.stream(
            "POST", f"{server.url}/v1/completions", json={**BODY, "stream": True}
        ) as streamed:
            for line in streamed.iter_lines():
                if line == "data: [DONE]":
                    n_lines = len(path.read_text().splitlines())
        assert n_lines == 2  # the line was there before the last byte
        httpx.post(f"{server.url}/v1/completions", json={"prompt": 5})
    first, second, third = map(json.loads, path.read_text().splitlines())
    assert first["request_id"] == whole["id"]
    told = whole["speculation"]
    assert whole["speculative"] == told  # until 0.3, as the names in the log below
    assert first["drafted"] == first["proposed_tokens"] == told["drafted"]
    assert first["accepted"] == first["accepted_tokens"] == told["accepted"]
    assert first["token_acceptance"] == first["accept_rate"] == told["token_acceptance"]
    assert first["ttft_ms"] > 0 and first["e2e_ms"] >= first["ttft_ms"]
    assert second["stream"] is True and third["status"] == 400
    assert "secret" not in path.read_text()
    assert path.stat().st_mode & 0o077 == 0


def test_a_client_that_left_is_logged_as_such_and_tells_no_time(
    target: Path, tmp_path: Path
) -> None:
    path = tmp_path / "requests.jsonl"
    with running(target, monitoring__request_log=str(path)) as server:
        server.service.engine.call(partial(time.sleep, 1.0))  # so that it leaves first
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{server.url}/v1/completions", json=BODY, timeout=0.3)
        wait_for(lambda: samples(server).get("parlay_requests_total|completions|499") == 1)
        assert samples(server)["parlay_request_seconds_count"] == 0
        assert server.service._usual_s == 1.0
    (told,) = map(json.loads, path.read_text().splitlines())
    assert (told["status"], told["finish_reason"]) == (499, "cancelled")
    assert told["e2e_ms"] >= 200 and told["queue_ms"] >= 200
    assert told["tokens_per_second"] == 0.0


def test_prompts_are_logged_when_asked_for(target: Path, tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    with running(target, monitoring__request_log=str(path), monitoring__log_prompts=True) as server:
        answer = httpx.post(f"{server.url}/v1/completions", json=BODY).json()
    line = json.loads(path.read_text())
    assert line["prompt"] == "hello" and line["answers"] == [answer["choices"][0]["text"]]


def test_the_request_log_rotates_and_forgets_the_oldest(tmp_path: Path) -> None:
    log = RequestLog(tmp_path / "log", max_bytes=100, keep=2)
    for i in range(30):
        log.write({"i": i, "x": "y" * 20})
    log.close()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["log", "log.1", "log.2"]
    lines = [
        json.loads(line)["i"]
        for name in ("log.2", "log.1", "log")
        for line in (tmp_path / name).read_text().splitlines()
    ]
    assert lines == list(range(lines[0], 30))
    assert all(path.stat().st_size <= 100 for path in tmp_path.iterdir())


def test_alerts_are_told_once_and_reach_the_webhook() -> None:
    received: list[dict[str, Any]] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["content-length"])
            received.append(json.loads(self.rfile.read(length)))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            """Quiet."""

    hook = HTTPServer(("127.0.0.1", 0), Hook)
    thread = threading.Thread(target=hook.serve_forever)
    thread.start()

    async def raise_twice() -> Alerts:
        alerts = Alerts(f"http://127.0.0.1:{hook.server_port}/")
        alerts.set("memory_pressure", "97 % of memory is in use")
        alerts.set("memory_pressure", "98 % of memory is in use")
        await asyncio.gather(*alerts._sending)
        alerts.set("memory_pressure", None)
        return alerts

    try:
        alerts = asyncio.run(raise_twice())
    finally:
        hook.shutdown()
        thread.join()
        hook.server_close()
    assert [alert["kind"] for alert in received] == ["memory_pressure"]
    assert alerts.n_raised["memory_pressure"] == 1 and not alerts.active


def test_a_drop_of_acceptance_raises_an_alert() -> None:
    async def watch(drop: bool) -> None:
        alerts = Alerts()
        watched: Any = SimpleNamespace(deployment=Deployment(), alerts=alerts)
        monitor = Monitor(watched)
        good, bad = Recent(300, 1000, 800, 0), Recent(300, 1000, 400, 0)
        monitor._acceptance(good)
        monitor._acceptance(bad if drop else good)
        assert ("acceptance_drop" in alerts.active) is drop
        monitor._acceptance(good)
        assert "acceptance_drop" not in alerts.active

    asyncio.run(watch(True))
    asyncio.run(watch(False))


def test_the_json_metrics_are_where_the_deployment_puts_them(target: Path) -> None:
    with running(target, monitoring__metrics_endpoint="/elsewhere") as server:
        assert httpx.get(f"{server.url}/elsewhere").json()["rounds"] == 0
        assert httpx.get(f"{server.url}/metrics/speculative").status_code == 404


def test_a_high_share_of_plain_rounds_raises_an_alert(target: Path) -> None:
    with running(target, model__drafter="suffix", runtime__fallback_threshold_pct=1) as server:
        httpx.post(f"{server.url}/v1/completions", json={**BODY, "max_tokens": 200})
        wait_for(lambda: "fallback_share" in server.service.alerts.active)
        found = httpx.get(f"{server.url}/metrics/speculative").json()
        assert "fallback_share" in [alert["kind"] for alert in found["alerts"]]
        assert samples(server)["parlay_alerts_total|fallback_share"] == 1


def test_counts_are_told_while_they_grow() -> None:
    """The engine's thread goes on counting: nobody who reads sees a table change under him."""
    counts = Counts()
    stop = threading.Event()

    def grow() -> None:
        for n in count():
            if stop.is_set():
                return
            counts.histogram[n] += 1
            counts.windows[n] += 1
            if n % 2000 == 0:
                counts.histogram.clear()
                counts.windows.clear()

    growing = threading.Thread(target=grow)
    growing.start()
    try:
        for _ in range(300):
            counts.as_dict()
    finally:
        stop.set()
        growing.join()
