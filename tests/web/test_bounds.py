"""Time, memory and sockets are bounded before work is done."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from parlay.front.schema import MAX_BIASES, CompletionRequest
from parlay.front.unknown import MAX_REMARKS, tell
from parlay.llama.vocabulary import Vocabulary
from parlay.web import connections
from tests.gateway.fakes import Engine, engines
from tests.gateway.running import gateway
from tests.server.running import Running, running
from tests.serving import ENDLESS, PATIENCE_S, Answering, wait_for

LONG = "a name of many bytes " * 1000  # in every event: buffers are full soon


@pytest.fixture(autouse=True)
def patient_with_the_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever was refused may send on for as long as a busy machine lets a client take."""
    for module in ("connections", "security"):
        monkeypatch.setattr(f"parlay.web.{module}.LINGER_S", PATIENCE_S)


def connect(server: Answering, **options: int) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    made = socket.socket()
    for name, value in options.items():
        made.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
    made.settimeout(PATIENCE_S)
    made.connect((host, int(port)))
    return made


def head(n_bytes: int) -> bytes:
    return (
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {n_bytes}\r\n\r\n"
    ).encode()


def test_a_full_server_refuses_before_it_reads_a_body(target: Path) -> None:
    with running(target, runtime__slots=1, server__queue_size=0) as server:
        url = f"{server.url}/v1/completions"
        with httpx.stream("POST", url, json=ENDLESS) as answer, connect(server) as late:
            lines = answer.iter_lines()
            next(lines)
            late.sendall(head(1_000_000))  # and nothing more
            found = late.recv(4096)
        assert found.startswith(b"HTTP/1.1 429") and b"retry-after:" in found
        counted = 'parlay_requests_total{endpoint="completions",status="429"} 1.0'
        wait_for(lambda: counted in httpx.get(f"{server.url}/metrics").text)


def told(refused: socket.socket, rest: bytes = b"x" * 3_000_000) -> dict[str, Any]:
    """Whoever is refused sends on, as many clients do before they read, and is still told why."""
    refused.recv(1, socket.MSG_PEEK)  # the answer is there
    refused.sendall(rest)
    refused.shutdown(socket.SHUT_WR)
    found = b""
    while part := refused.recv(4096):
        found += part
    error: dict[str, Any] = json.loads(found.partition(b"\r\n\r\n")[2])["error"]
    return error


@pytest.mark.parametrize(
    ("n_bytes", "code"), [(3_000_000, "queue_full"), (9_000_000, "body_too_large")]
)
def test_who_is_refused_while_sending_is_told_why(target: Path, n_bytes: int, code: str) -> None:
    with running(target, runtime__slots=1, server__queue_size=0) as server:
        url = f"{server.url}/v1/completions"
        with httpx.stream("POST", url, json=ENDLESS) as answer, connect(server) as late:
            lines = answer.iter_lines()  # whose end would be the answer's
            next(lines)
            late.sendall(head(n_bytes))
            assert told(late)["code"] == code


def test_what_is_thrown_away_takes_no_place(target: Path) -> None:
    with (
        running(target, runtime__slots=1, server__max_body_mb=0.01) as server,
        connect(server) as long,
    ):
        chunk = b"4e20\r\n" + b"x" * 20_000 + b"\r\n"
        unsized = head(0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
        long.sendall(unsized + chunk)
        long.recv(1, socket.MSG_PEEK)
        assert server.service.admission.n_coming == 0  # and there is more to come
        assert told(long, chunk * 100)["code"] == "body_too_large"


def test_bodies_on_their_way_take_places_too(target: Path) -> None:
    with running(target, runtime__slots=1, server__queue_size=1) as server, ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(connect(server)).sendall(head(100) + b"{")
        wait_for(lambda: server.service.admission.n_coming == 2)
        body = {"prompt": "hello", "max_tokens": 1}
        assert httpx.post(f"{server.url}/v1/completions", json=body).status_code == 429
        stack.close()
        wait_for(lambda: server.service.admission.n_coming == 0)
        assert httpx.post(f"{server.url}/v1/completions", json=body).status_code == 200


def test_a_full_gateway_refuses_before_it_reads_a_body() -> None:
    with engines(Engine("m", delay_s=0.1)) as (engine,):
        engine.words = ["x"] * 10_000  # as long as it takes
        pool = {"name": "all", "urls": [engine.url], "max_concurrent": 1}
        with gateway(pool, server={"queue_size": 0}) as running_, connect(running_) as late:
            url = f"{running_.url}/v1/completions"
            with httpx.stream("POST", url, json={"prompt": "x", "stream": True}) as answer:
                lines = answer.iter_lines()
                next(lines)
                late.sendall(head(1_000_000))
                assert late.recv(4096).startswith(b"HTTP/1.1 429")


def test_connections_are_counted(target: Path) -> None:
    with (
        running(target, runtime__slots=1, server__max_connections=3) as server,
        ExitStack() as stack,
    ):
        for _ in range(3):
            stack.enter_context(connect(server))
        with connect(server) as one_more:
            assert told(one_more)["code"] == "too_many_connections"
        stack.close()
        wait_for(lambda: answers(server))


def answers(server: Answering) -> bool:
    with suppress(httpx.HTTPError):  # turned away
        return httpx.get(f"{server.url}/health").status_code == 200
    return False


@pytest.mark.parametrize("sent", [b"", b"POST /v1/completions HTTP/1.1\r\nHost: local"])
def test_a_connection_that_says_nothing_is_closed(
    target: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(connections.bounded, "__defaults__", (0.05, None))
    with (
        running(target, runtime__slots=1) as server,
        connect(server) as silent,
        suppress(ConnectionError),  # it may be closed before a word is said
    ):
        silent.sendall(sent)
        assert silent.recv(1) == b""


def test_a_connection_that_was_answered_in_between_is_not_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections.Base, "on_response_complete", lambda _: None)
    aborted: list[bool] = []
    kind = connections.bounded(1, 1000.0)
    made: Any = kind.__new__(kind)
    made.cycle = None
    made.transport = SimpleNamespace(is_closing=lambda: False, abort=lambda: aborted.append(True))

    async def live() -> None:
        made._look()
        made.on_response_complete()
        made._look()  # idle both times, and busy in between
        assert not aborted
        made._look()
        assert aborted

    asyncio.run(live())


def test_a_client_that_never_reads_is_let_go(target: Path) -> None:
    with (
        running(target, runtime__slots=1, server__stall_s=0.3, model__alias=[LONG]) as server,
        connect(server, SO_RCVBUF=2048) as deaf,
    ):
        body = json.dumps(ENDLESS).encode()
        deaf.sendall(head(len(body)) + body)
        assert deaf.recv(1)  # it has begun
        wait_for(lambda: server.service.n_open == 0)  # far below the time limit of a request
        body = json.dumps({"prompt": "x", "max_tokens": 1}).encode()
        answer = httpx.post(
            f"{server.url}/v1/completions",
            content=body,
            headers={"Content-Type": "application/json"},
        )
        assert answer.status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": [{}] * 500_000},
        {"prompt": ["a", 1] * 250_000},
        {"prompt": "x", "logit_bias": {str(i): "x" for i in range(100_000)}},
        {"prompt": "x", "logit_bias": {str(i): 1 for i in range(MAX_BIASES + 1)}},
        {"prompt": "x", "stop": "s" * 1001},
        {"prompt": "x", "stop": ["s" * 1001]},
        {"prompt": [1] * ((1 << 20) + 1)},
    ],
)
def test_what_is_wrong_a_million_times_is_said_once(body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        CompletionRequest.model_validate(body)
    assert caught.value.error_count() < 5


def test_few_of_many_unknown_fields_are_looked_up() -> None:
    began = time.thread_time()
    assert len(tell([f"field{i}" for i in range(200_000)], ["prompt"] * 100, refuse=False)) == (
        MAX_REMARKS
    )
    assert time.thread_time() - began < 5


def test_pieces_are_written_off_the_event_loop(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, names = Vocabulary.text_of, set[str]()

    def text_of(self: Vocabulary, token: int) -> str:
        names.add(threading.current_thread().name)
        return real(self, token)

    monkeypatch.setattr(Vocabulary, "text_of", text_of)
    body = {"content": "hello " * 50, "with_pieces": True}
    found = httpx.post(f"{server.url}/tokenize", json=body).json()["tokens"]
    assert "".join(token["piece"] for token in found) == body["content"]
    assert names and "test-server" not in names
