"""Metrics, the request log, alerts, and what they say about one request."""

from __future__ import annotations

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from parlay.backend.monitor import Monitor
from parlay.backend.observer import Recent
from parlay.decoding.counts import Counts
from parlay.deployment import Deployment
from parlay.front.alerts import Alerts
from parlay.front.request_log import RequestLog
from tests.front.running import Running, running
from tests.serving import wait_for

BODY: dict[str, Any] = {"prompt": "hello", "max_tokens": 30, "temperature": 0}


def samples(server: Running) -> dict[str, float]:
    text = httpx.get(f"{server.url}/metrics").text
    return {
        sample.name + "".join(f"|{v}" for v in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_json_metrics_hold_counts_live_figures_and_state(server: Running) -> None:
    httpx.post(f"{server.url}/v1/completions", json=BODY)
    wait_for(lambda: server.figures()["baseline_ms"].keys() >= {"1", "8"})
    found = server.figures()
    assert found["drafted"] >= found["accepted"] > 0
    tried = found["positions"]["1"]
    assert found["acceptance_by_position"][0] == pytest.approx(
        tried["accepted"] / tried["drafted"], abs=1e-3
    )
    assert found["mode"] == "exact" and found["exact"]["concurrent"] is True
    assert found["drafter"]["state"] == "ready"
    assert set(found["baseline_ms"]) >= {"1", "8"}
    assert 0 <= found["fallback_share"] <= 1


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
    for drop in (True, False):
        told: dict[str, str | None] = {}
        seen: Any = SimpleNamespace(counts=SimpleNamespace(n_rounds=0))
        idle: Any = SimpleNamespace(
            alive=True,
            look=lambda *_: False,
            come_back=lambda: None,
            cooling=True,
        )
        monitor = Monitor(idle, seen, idle, idle, idle, told.__setitem__, lambda: None)
        for n_accepted in (800, 400 if drop else 800, 800):
            recent = Recent(300, 1000, n_accepted, 0)
            seen.counts.n_rounds += 300
            seen.recent_sums = lambda recent=recent: recent
            monitor.look(Deployment(), idle)
            dropped = drop and n_accepted == 400
            assert (told["acceptance_drop"] is not None) is dropped


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
