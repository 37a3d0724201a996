"""The engine's process dies: who had not been answered yet is, who had been is told."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from parlay.deployment import load_deployment
from parlay.engine.worker import Worker
from parlay.web.supervisor import Supervisor
from parlay.web.supervisor_link import Note, receive, send, written
from tests.server.lifecycle.test_process import SHORT, Served, served, streaming, write
from tests.server.running import running
from tests.serving import ENDLESS, PATIENCE_S, wait_for


def engine_of(server: Served) -> psutil.Process:
    """The process that serves; the one that was started holds the address only."""
    found: list[psutil.Process] = []

    def there() -> bool:
        with suppress(psutil.Error):
            found[:] = psutil.Process(server.process.pid).children()
        return len(found) == 1

    wait_for(there)
    return found[0]


def health(server: Served) -> dict[str, Any]:
    with suppress(httpx.HTTPError):
        return dict(httpx.get(f"{server.url}/health").json())
    return {}


@pytest.fixture
def supervised(target: Path, tmp_path: Path) -> Iterator[tuple[Served, Path]]:
    """One slot, so that all but one request wait."""
    log = tmp_path / "log.jsonl"
    path = write(
        tmp_path / "d.yaml",
        target,
        runtime={"slots": 1},
        monitoring={"request_log": str(log)},
        server={"drain_s": 1},
    )
    with served(path) as server:
        yield server, log


def events(lines: Iterator[str]) -> list[dict[str, Any]]:
    data = [line.removeprefix("data: ") for line in lines]
    return [json.loads(item) for item in data if item != "[DONE]"]


def queued(server: Served, stream: bool) -> str:
    """An answer, however long it takes."""
    body = {**SHORT, "prompt": f"waiting {stream}", "stream": stream}
    url = f"{server.url}/v1/completions"
    if not stream:
        return str(httpx.post(url, json=body).json()["choices"][0]["text"])
    with httpx.stream("POST", url, json=body) as response:
        found = events(line for line in response.iter_lines() if line)
    return "".join(chunk["choices"][0]["text"] for chunk in found)


def test_a_death_costs_only_the_answers_that_had_begun(
    supervised: tuple[Served, Path],
) -> None:
    server, log = supervised
    plain = [queued(server, stream) for stream in (False, True)]
    engine = engine_of(server)
    with ThreadPoolExecutor(2) as pool, streaming(server, ENDLESS) as lines:
        waiting = [pool.submit(queued, server, stream) for stream in (False, True)]
        wait_for(lambda: server.speculative()["queue"]["waiting"] == 2)
        engine.send_signal(signal.SIGKILL)
        told = events(lines)
        seen: list[str] = []
        while "ok" not in seen:
            seen.append(health(server).get("status", ""))
        assert [answer.result(PATIENCE_S) for answer in waiting] == plain
    assert told[-1]["error"]["code"] == "engine_died"
    assert "restarting" in seen
    assert engine_of(server).pid != engine.pid
    logged = [json.loads(line) for line in log.read_text().splitlines()]
    assert sorted(line["status"] for line in logged) == [200, 200, 200, 200, 500]
    assert {line["endpoint"] for line in logged} == {"completions"}
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(PATIENCE_S) == 0


def test_a_request_that_is_there_at_every_death_is_not_tried_for_ever(
    supervised: tuple[Served, Path],
) -> None:
    server, _ = supervised
    with ThreadPoolExecutor(1) as pool:
        for n in range(2):
            engine = engine_of(server)
            wait_for(lambda: health(server).get("status") == "ok")
            if n == 0:
                asked = pool.submit(server.ask, **{**ENDLESS, "stream": False})
            wait_for(lambda: server.speculative()["queue"]["waiting"] == 0)
            wait_for(lambda: any(slot["is_processing"] for slot in slots(server)))
            engine.kill()
            engine.wait(PATIENCE_S)
        answer = asked.result(PATIENCE_S)
    assert answer.status_code == 500 and answer.json()["error"]["code"] == "engine_died"
    wait_for(lambda: health(server).get("status") == "ok")
    assert server.ask().status_code == 200


def slots(server: Served) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = httpx.get(f"{server.url}/slots").json()
    return found


def test_an_engine_that_dies_too_often_stays_dead(target: Path, tmp_path: Path) -> None:
    with served(write(tmp_path / "d.yaml", target, server={"max_restarts": 1})) as server:
        for _ in range(2):
            wait_for(lambda: health(server).get("status") == "ok")
            engine_of(server).kill()
        assert server.process.wait(PATIENCE_S) == 1


def test_between_two_servers_who_asks_is_told_and_a_signal_to_stop_is_heard(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # pytest keeps its own
    path = write(tmp_path / "d.yaml", target)
    supervisor = Supervisor(lambda: load_deployment(path))
    address = supervisor._listener.getsockname()
    url = f"http://{address[0]}:{address[1]}"
    with ThreadPoolExecutor(1) as pool:
        resting = pool.submit(supervisor._rest, 1000.0)
        early = socket.create_connection(address)  # says nothing yet
        answer = httpx.get(f"{url}/health")
        assert (answer.status_code, answer.json()["status"]) == (503, "loading")
        assert httpx.head(f"{url}/health").status_code == 503
        early.sendall(b"POST /v1/completions HTTP/1.1\r\n")
        supervisor._pass_on(signal.SIGTERM, None)
        resting.result(PATIENCE_S)
    assert len(supervisor._held) == 1  # whoever wants an answer waits for it
    assert supervisor.run() == 0  # and nobody is started any more
    early.close()


def test_who_waits_is_handed_over_whole_and_who_comes_then_is_the_servers(
    target: Path, tmp_path: Path
) -> None:
    """All is seen at once: the server is ready, those who waited speak, and somebody comes."""
    supervisor = Supervisor(lambda: load_deployment(write(tmp_path / "d.yaml", target)))
    address, ours_and_theirs = supervisor._listener.getsockname(), socket.socketpair()
    waiting, late = [socket.create_connection(address) for _ in range(20)], socket.socket()
    for client in waiting:
        supervisor._held.append((supervisor._listener.accept()[0], b"", False))
        client.sendall(b"GET /health HTTP/1.1\r\n")
    late.connect(address)
    ours, theirs = ours_and_theirs
    send(theirs, Note("ready"))
    with ThreadPoolExecutor(1) as pool, ours, theirs:
        watched = pool.submit(supervisor._watch, ours)
        adopted = [receive(theirs) for _ in waiting]
        theirs.close()
        assert watched.result(PATIENCE_S) is True
    fds = [note.fd for note in adopted if note is not None and note.fd is not None]
    assert len(fds) == len(waiting)
    for client, fd in zip(waiting, fds, strict=True):
        with client, socket.socket(fileno=fd) as taken:
            assert taken.recv(64).startswith(b"GET /health")  # nobody has read or answered it
            taken.sendall(b"x")
            assert client.recv(64) == b"x"
    assert supervisor._held == []
    with late, supervisor._listener.accept()[0]:
        supervisor._listener.close()


def test_who_was_answered_to_the_last_byte_is_told_nothing_more(
    target: Path, tmp_path: Path
) -> None:
    """The engine may die before it says that it is done: the next answer would begin with that."""
    path = write(tmp_path / "d.yaml", target)
    supervisor = Supervisor(lambda: load_deployment(path))
    client, server = socket.socketpair()
    about = {"path": "/v1/completions", "headed": False, "tries": 0, "connection": 7}
    supervisor._take(Note("kept", 1, about, b"x", server.detach()))
    supervisor._take(Note("begun", 1))
    supervisor._take(Note("idle", 7))
    supervisor._settle()
    assert not supervisor._held
    assert client.recv(1) == b""  # closed, and not a word
    client.close()
    supervisor._listener.close()


def test_a_server_whose_supervisor_is_killed_ends_too(supervised: tuple[Served, Path]) -> None:
    server, _ = supervised
    engine = engine_of(server)
    server.process.kill()
    engine.wait(PATIENCE_S)


def test_a_thread_that_died_fails_the_health_check(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(target, runtime__slots=1) as server:
        with monkeypatch.context() as patch:
            patch.setattr(Worker, "alive", False)
            answer = httpx.get(f"{server.url}/health")
            assert answer.status_code == 503 and answer.json()["status"] == "engine_died"
            wait_for(lambda: "engine" in server.service.alerts.active)
        assert httpx.get(f"{server.url}/health").status_code == 200


def test_notes_carry_requests_of_any_size_and_connections() -> None:
    ours, theirs = socket.socketpair()
    one, other = socket.socketpair()
    with ours, theirs, one, other, ThreadPoolExecutor(1) as pool:
        note = Note("kept", 3, {"path": "/v1/x"}, b"x" * 3_000_000, one.fileno())
        sending = pool.submit(send, ours, note)
        found = receive(theirs)
        sending.result()
        assert found is not None and found.fd is not None
        assert (found.kind, found.key, found.about, found.request) == (
            "kept",
            3,
            {"path": "/v1/x"},
            note.request,
        )
        with socket.socket(fileno=found.fd) as copy:
            copy.sendall(b"hello")
        assert other.recv(5) == b"hello"
        ours.close()
        assert receive(theirs) is None


def test_a_request_is_written_as_it_could_have_come() -> None:
    scope = {
        "method": "POST",
        "path": "/v1/completions",
        "raw_path": b"/v1/completions",
        "query_string": b"a=b",
        "headers": [(b"host", b"x"), (b"transfer-encoding", b"chunked"), (b"x-parlay-tries", b"1")],
    }
    head, _, body = written(scope, b"{}").partition(b"\r\n\r\n")
    assert body == b"{}"
    assert head.split(b"\r\n") == [
        b"POST /v1/completions?a=b HTTP/1.1",
        b"host: x",
        b"content-length: 2",
        b"x-parlay-tries: 2",
    ]


def test_a_request_log_that_cannot_be_written_is_told_once(target: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "d.yaml", target, monitoring={"request_log": str(tmp_path)})
    command = [
        sys.executable,
        "-c",
        "from parlay.cli.entry import main; main()",
        "serve",
        str(path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2 and "cannot be written (it is a folder)" in line
