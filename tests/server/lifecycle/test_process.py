"""The server as a process: signals, drain, reload, sudden death, --check."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from typer.testing import CliRunner

from parlay.cli.main import app
from tests.serving import ENDLESS, PATIENCE_S, wait_for

SCRIPT = Path(__file__).parents[1] / "serve_once.py"
SHORT: dict[str, Any] = {"prompt": "hello", "max_tokens": 20, "temperature": 0}


class Served:
    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        self.url = url.removesuffix("/v1")

    def ask(self, **more: Any) -> httpx.Response:
        return httpx.post(f"{self.url}/v1/completions", json={**SHORT, **more})

    def refuses(self) -> bool:
        """Whether the signal to end has reached it: it takes no new requests."""
        try:
            return self.ask().status_code == 503
        except httpx.TimeoutException:
            raise  # heard and left waiting is no refusal
        except httpx.HTTPError:
            return True  # nobody listens any more

    @property
    def n_busy(self) -> int:
        return sum(slot["is_processing"] for slot in httpx.get(f"{self.url}/slots").json())

    def speculative(self) -> dict[str, Any]:
        found: dict[str, Any] = httpx.get(f"{self.url}/metrics/speculative").json()
        return found


def write(path: Path, target: Path, **sections: dict[str, Any]) -> Path:
    content: dict[str, dict[str, Any]] = {
        "model": {"target": str(target), "drafter": "suffix"},
        "runtime": {"context_size": 512, "threads": 1, "slots": 2, "controller": "fixed"},
        "server": {"port": 0, "drain_s": 2 * PATIENCE_S},
        "monitoring": {"memory_pressure_pct": 100},
    }
    for name, keys in sections.items():
        content[name] |= keys
    path.write_text(yaml.safe_dump(content))
    return path


@contextmanager
def served(deployment: Path) -> Iterator[Served]:
    """What it says goes to the test's own output, which is shown where the test fails; never a
    traceback."""
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(deployment), "--json"],
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            yield Served(process, json.loads(line)["url"])
        finally:
            status = process.poll()
            process.kill()
            process.wait()
            process.stdout.close()  # type: ignore[union-attr]
            said.seek(0)
            text = said.read()
            print(f"the server (status {status}) said:", text)
            assert "Traceback" not in text


@contextmanager
def streaming(server: Served, body: dict[str, Any]) -> Iterator[Iterator[str]]:
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body) as response:
        lines = (line for line in response.iter_lines() if line)
        next(lines)
        yield lines


def test_sigterm_lets_the_answer_finish_and_a_second_one_ends(target: Path, tmp_path: Path) -> None:
    with served(write(tmp_path / "d.yaml", target)) as server:
        with streaming(server, {**ENDLESS, "max_tokens": 400}) as lines:
            server.process.send_signal(signal.SIGTERM)
            assert list(lines)[-1] == "data: [DONE]"
        assert server.process.wait(PATIENCE_S) == 0
    path = write(tmp_path / "d.yaml", target)
    with served(path) as server, streaming(server, ENDLESS) as lines:
        server.process.send_signal(signal.SIGTERM)
        wait_for(server.refuses)  # who comes now, while the answer goes on
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(PATIENCE_S)  # half of what draining may take
        assert "shutting_down" in list(lines)[-2]


@pytest.mark.parametrize("n_signals", [1, 2])
def test_a_stream_that_is_given_up_ends_with_the_reason(
    target: Path, tmp_path: Path, n_signals: int
) -> None:
    log = tmp_path / "requests.jsonl"
    drain = {"drain_s": 1 if n_signals == 1 else 2 * PATIENCE_S}
    path = write(tmp_path / "d.yaml", target, server=drain, monitoring={"request_log": str(log)})
    with served(path) as server, ThreadPoolExecutor(1) as pool, streaming(server, ENDLESS) as lines:
        whole = pool.submit(server.ask, max_tokens=10**6, context_full="slide")
        wait_for(lambda: server.n_busy == 2)
        for _ in range(n_signals):
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.2)
        *_, told, done = lines
        assert json.loads(told.removeprefix("data: "))["error"]["code"] == "shutting_down"
        assert done == "data: [DONE]"
        assert whole.result(PATIENCE_S).status_code == 503
        assert server.process.wait(PATIENCE_S) == 0
    found = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(line["status"], line["error"]) for line in found] == [(503, "shutting_down")] * 2


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs Linux's tables")
def test_a_client_that_stops_reading_does_not_keep_a_second_sigterm_waiting(
    target: Path, tmp_path: Path
) -> None:
    long = {"alias": ["a name of many bytes " * 1000]}  # in every event: buffers are full soon
    path = write(tmp_path / "d.yaml", target, model=long)
    with served(path) as server, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, port = server.url.removeprefix("http://").split(":")
        client.connect((host, int(port)))
        body = json.dumps(ENDLESS).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n"
        client.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
        assert b"200 OK" in client.recv(100)
        wait_for(lambda: _is_stuck(int(port)))
        server.process.send_signal(signal.SIGTERM)
        wait_for(server.refuses)
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(PATIENCE_S)


def _is_stuck(port: int) -> bool:
    """Whether what was written to the client no longer leaves the server's side."""
    before = _unsent(port)
    time.sleep(0.1)
    return _unsent(port) == before > 0


def _unsent(port: int) -> int:
    """Bytes in the send queues of established connections of a local port."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text("ascii").splitlines()[1:]]
    own = [line for line in lines if line[3] == "01" and line[1].endswith(f":{port:04X}")]
    return sum(int(line[4].split(":")[0], 16) for line in own)


def test_sighup_changes_what_it_can_without_dropping_a_request(
    target: Path, drafter: Path, tmp_path: Path
) -> None:
    path = write(tmp_path / "d.yaml", target, model={"alias": ["old"]})
    with served(path) as server, streaming(server, ENDLESS) as lines:
        write(path, target, model={"alias": ["new"], "drafter": str(drafter)})
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: server.speculative()["drafter"]["state"] == "ready")
        assert server.speculative()["drafter"]["proposers"] == ["model"]
        assert httpx.get(f"{server.url}/health").json()["model"] == "new"
        assert server.ask().json()["speculation"]["proposers"].keys() == {"model"}
        assert next(lines)
        # A file that is gone: plain decoding, with the reason, and the stream goes on.
        write(path, target, model={"drafter": str(tmp_path / "gone.gguf")})
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: server.speculative()["drafter"]["state"] == "absent")
        assert server.ask().json()["speculation"]["fallbacks"].keys() == {"draft_error"}
        # A file with a mistake changes nothing; one that needs a restart says so.
        path.write_text("runtime: {slot: 3}")
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "reload" in [a["kind"] for a in server.speculative()["alerts"]])
        write(path, target, runtime={"slots": 3})
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "restart_needed" in [a["kind"] for a in server.speculative()["alerts"]])
        assert server.ask().status_code == 200
        assert next(lines)


def test_sudden_death_loses_no_line_of_an_answered_request(target: Path, tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    # Nobody to start it anew: what is in the log must be there by itself.
    alone = {"max_restarts": 0}
    path = write(tmp_path / "d.yaml", target, monitoring={"request_log": str(log)}, server=alone)
    answered: list[str] = []

    def ask_again_and_again(server: Served) -> None:
        try:
            while True:
                answered.append(server.ask().json()["id"])
        except (httpx.HTTPError, ValueError):
            return

    with served(path) as server, streaming(server, ENDLESS):
        threads = [threading.Thread(target=ask_again_and_again, args=(server,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        wait_for(lambda: len(answered) > 20)
        os.kill(server.process.pid, signal.SIGKILL)
        for thread in threads:
            thread.join()
    logged = [json.loads(line).get("request_id") for line in log.read_text().splitlines()]
    assert set(answered) <= set(logged)
    assert len(answered) > 20


@pytest.mark.parametrize(
    ("sections", "code", "said"),
    [
        ({}, 0, "can be served"),
        ({"server": {"host": "0.0.0.0"}}, 1, "no API key is set"),
        ({"model": {"drafter": "gone.gguf"}}, 1, "no file at"),
        ({"model": {"tokenizer": "gone.json"}}, 1, "model.tokenizer"),
        ({"runtime": {"vram_budget_gb": 0.001}}, 1, "the limit is"),
    ],
)
def test_check_validates_and_exits(
    target: Path, tmp_path: Path, sections: dict[str, dict[str, Any]], code: int, said: str
) -> None:
    path = write(tmp_path / "d.yaml", target, **sections)
    done = CliRunner().invoke(app, ["serve", str(path), "--check"])
    assert done.exit_code == code
    assert said in done.output + str(done.exception)
