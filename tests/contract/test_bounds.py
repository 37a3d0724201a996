"""Time, memory and sockets are bounded before work is done, and whoever is refused is told why."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests import doors, tiny_models
from tests.serving import PATIENCE_S

SMALL: dict[str, Any] = {"prompt": "hello", "max_tokens": 1}


@contextmanager
def full(model: Path, **more: Any) -> Iterator[doors.Server]:
    """One slot, which an endless answer has, and no queue."""
    with (
        doors.server(model, runtime__slots=1, server__queue_size=0, **more) as server,
        server.stream("hello", "completions", **doors.ENDLESS) as stream,
    ):
        stream.first_words()
        yield server


@contextmanager
def connected(server: doors.Server) -> Iterator[socket.socket]:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as made:
        yield made


def head(n_bytes: int) -> bytes:
    return (
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {n_bytes}\r\n\r\n"
    ).encode()


def error_in(refused: socket.socket) -> dict[str, Any]:
    found = b""
    while not found.rstrip().endswith(b"}"):
        part = refused.recv(4096)
        if not part:
            break
        found += part
    error: dict[str, Any] = json.loads(found.partition(b"\r\n\r\n")[2])["error"]
    return error


def test_a_full_server_refuses_before_it_reads_a_body(model: Path) -> None:
    with full(model) as server, connected(server) as late:
        late.sendall(head(1_000_000))  # and nothing more
        assert error_in(late)["code"] == "queue_full"
        refused = server.post("/v1/completions", SMALL)
        assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1


def test_a_body_that_is_too_large_is_refused_before_it_comes(model: Path) -> None:
    with doors.server(model) as server, connected(server) as long:
        long.sendall(head(900_000_000))
        assert error_in(long)["code"] == "body_too_large"


def test_bodies_on_their_way_take_places_and_give_them_back(model: Path) -> None:
    with doors.server(model, runtime__slots=1, server__queue_size=1) as server:
        with ExitStack() as stack:
            for _ in range(2):
                stack.enter_context(connected(server)).sendall(head(100) + b"{")
            doors.until(lambda: server.post("/v1/completions", SMALL).status_code == 429)
        doors.until(lambda: server.post("/v1/completions", SMALL).status_code == 200)


def test_a_client_that_never_reads_is_let_go(model: Path) -> None:
    """Far below the time limit of a request."""
    long = ["a name of many bytes " * 1000]  # in every event: buffers are full soon
    with doors.server(model, server__stall_s=0.3, model__alias=long) as server:
        body = {"prompt": "hello", "stream": True, **doors.ENDLESS}
        with server.sending(body, "completions", receive_buffer=2048) as deaf:
            assert deaf.recv(1)  # it has begun
            doors.until(server.is_idle)
            assert server.post("/v1/completions", SMALL).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": [{}] * 100_000},
        {"prompt": "x", "logit_bias": {str(i): "x" for i in range(50_000)}},
        {"prompt": "x", "stop": ["s" * 1001]},
        {"prompt": "x", "temperature": "hot"},
    ],
)
def test_what_is_wrong_a_thousand_times_is_said_once(
    server: doors.Server, body: dict[str, Any]
) -> None:
    answer = server.post("/v1/completions", body)
    assert answer.status_code == 400
    assert len(answer.json()["error"]["message"]) < 1000


def test_drafts_that_are_seldom_right_are_given_up_where_a_threshold_says_so(
    model: Path, tiny_folder: Path
) -> None:
    bad = tiny_models.perturb(model, tiny_folder / "contract-bad-drafter.gguf", noise=3.0)
    for threshold in (None, 0.5):
        rails = {} if threshold is None else {"runtime__min_token_acceptance": threshold}
        with doors.server(model, model__drafter=str(bad), **rails) as server:
            told = server.ask("hello", "completions", max_tokens=120).speculation
            assert told["token_acceptance"] < 0.5
            assert (told["fallbacks"].get("low_acceptance", 0) > 50) == (threshold is not None)
