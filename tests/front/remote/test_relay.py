"""Answers through a gateway: whole and streamed, and every way in which an engine can fail."""

from __future__ import annotations

import gc
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest

from tests.front.remote.fakes import WORDS, Engine, engines
from tests.front.remote.running import Running, gateway
from tests.serving import unclosed, wait_for

TEXT = "".join(WORDS)
ASK = {"messages": [{"role": "user", "content": "rain?"}], "model": "mine", "max_tokens": 16}


def pool(*found: Engine, **more: Any) -> dict[str, Any]:
    return {"name": "all", "urls": [engine.url for engine in found], **more}


def ask(running: Running, **more: Any) -> httpx.Response:
    return httpx.post(f"{running.url}/v1/chat/completions", json={**ASK, **more})


def stream(running: Running, **more: Any) -> tuple[list[dict[str, Any]], httpx.Response]:
    body = {**ASK, "stream": True, **more}
    url = f"{running.url}/v1/chat/completions"
    chunks, ended = [], False
    with httpx.stream("POST", url, json=body) as response:
        if response.status_code != 200:
            response.read()
            return [response.json()], response
        for line in response.iter_lines():
            if line.startswith("data:") and line != "data: [DONE]":
                chunks.append(json.loads(line[5:]))
            ended = ended or line == "data: [DONE]"
    assert ended
    return chunks, response


def text_of(chunks: list[dict[str, Any]]) -> str:
    choices = [c["choices"][0] for c in chunks if c.get("choices")]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


@contextmanager
def talking(found: Sequence[Engine], work: Callable[[], object], n: int) -> Iterator[None]:
    """So many clients at once; no engine says a word before the end of the block."""
    threads = [threading.Thread(target=work) for _ in range(n)]
    for engine in found:
        engine.held = True
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for engine in found:
            engine.held = False
        for thread in threads:
            thread.join()


@pytest.fixture
def two() -> Iterator[tuple[Running, Engine, Engine]]:
    """Two servers of one plain pool."""
    with engines(Engine("m"), Engine("m")) as (one, other), gateway(pool(one, other)) as running:
        yield running, one, other


def only(running: Running, name: str) -> float:
    page = httpx.get(f"{running.url}/metrics").text
    rows = [line for line in page.splitlines() if line.startswith(name)]
    return sum(float(row.rsplit(" ", 1)[1]) for row in rows)


# -- when all is well ---------------------------------------------------------------------------


def test_a_whole_answer_comes_under_the_name_the_client_used(
    two: tuple[Running, Engine, Engine],
) -> None:
    running, one, other = two
    response = ask(running, top_k=3, made_up={"x": 1})
    answer = response.json()
    assert response.status_code == 200
    assert answer["choices"][0]["message"]["content"] == TEXT
    assert answer["model"] == "mine"
    assert answer["speculation"]["pool"] == response.headers["x-parlay-pool"] == "all"
    assert answer["speculation"]["reason"] == response.headers["x-parlay-reason"] == "only"
    assert response.headers["x-parlay-speculative"] == "false"
    (asked,) = one.asked + other.asked
    assert asked["model"] == "m"
    assert asked["top_k"] == 3 and "made_up" not in asked
    assert "made_up" in response.headers["x-parlay-warnings"]
    assert "speculation" not in asked


def test_a_stream_ends_with_its_numbers(two: tuple[Running, Engine, Engine]) -> None:
    chunks, response = stream(two[0])
    assert text_of(chunks) == TEXT
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-parlay-pool"] == "all"
    last = chunks[-1]
    assert last["choices"][0]["finish_reason"] == "stop"
    assert last["speculation"]["generated"] == len(WORDS)
    assert "usage" not in last and all(chunk["choices"] for chunk in chunks)


def test_usage_is_shown_to_those_who_asked(two: tuple[Running, Engine, Engine]) -> None:
    chunks, _ = stream(two[0], stream_options={"include_usage": True})
    assert chunks[-1]["usage"]["completion_tokens"] == len(WORDS)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["speculation"] == chunks[-2]["speculation"]


def test_plain_completions_are_relayed_too(two: tuple[Running, Engine, Engine]) -> None:
    url = f"{two[0].url}/v1/completions"
    answer = httpx.post(url, json={"prompt": "rain?"}).json()
    assert answer["choices"][0]["text"] == TEXT
    with httpx.stream("POST", url, json={"prompt": "rain?", "stream": True}) as response:
        lines = [line for line in response.iter_lines() if line.startswith("data: {")]
    assert "".join(json.loads(line[6:])["choices"][0]["text"] for line in lines) == TEXT


def test_openais_own_client_reads_it(two: tuple[Running, Engine, Engine]) -> None:
    client = two[0].client()
    messages: Any = ASK["messages"]
    assert client.models.list().data[0].id == "m"
    parts = client.chat.completions.create(model="x", messages=messages, stream=True)
    assert "".join(part.choices[0].delta.content or "" for part in parts) == TEXT


def test_requests_go_to_the_least_busy_server() -> None:
    found = [Engine("m") for _ in range(3)]
    with engines(*found), gateway(pool(*found)) as running:
        with talking(found, lambda: stream(running), 9):
            wait_for(lambda: sum(len(engine.asked) for engine in found) == 9)
        assert [len(engine.asked) for engine in found] == [3, 3, 3]


def test_an_upstreams_key_is_sent_and_the_clients_is_not() -> None:
    with engines(Engine("m")) as (one,):
        keys = {"api_keys": ["door"]}
        with gateway(pool(one, api_key="inner"), server=keys) as running:
            url = f"{running.url}/v1/chat/completions"
            assert httpx.post(url, json=ASK).status_code == 401
            door = {"Authorization": "Bearer door"}
            assert httpx.post(url, json=ASK, headers=door).status_code == 200
    assert one.headers[0]["authorization"] == "Bearer inner"


def test_per_answer_figures_of_vllm_become_our_words() -> None:
    with engines(Engine("m", speculates=True)) as (one,):
        one.mode = "telling"
        with gateway(pool(one, speculative=True)) as running:
            told = stream(running)[0][-1]["speculation"]
            assert (told["drafted"], told["accepted"], told["rounds"]) == (6, 3, 4)
            assert told["acceptance_by_position"] == [1.0, 0.5]
            assert told["token_acceptance"] == 0.5
            assert told["speculates"] is True
            found = httpx.get(f"{running.url}/metrics/speculative").json()
            assert (found["drafted"], found["accepted"]) == (6, 3)
            assert only(running, "parlay_drafted_tokens_total") == 6


def test_counters_of_a_page_are_summed_over_its_engines() -> None:
    with engines(Engine("m", speculates=True)) as (one,), gateway(pool(one)) as running:
        for _ in range(3):
            ask(running)
        wait_for(lambda: only(running, "parlay_upstream_drafted_tokens_total") == 18)
        assert only(running, "parlay_upstream_accepted_tokens_total") == 9
        assert only(running, "parlay_drafted_tokens_total") == 18
        assert only(running, "parlay_generated_tokens_total") == 3 * len(WORDS)


# -- when an engine fails before it answers -----------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "streamed"),
    [
        ("http_500", True),
        ("http_500", False),
        ("http_401", False),
        ("cut_early", True),
        ("cut_early", False),
        ("cut_opening", True),
        ("cut", False),
        ("garbled", False),
    ],
)
def test_another_server_takes_over_before_the_first_byte(
    two: tuple[Running, Engine, Engine], mode: str, streamed: bool
) -> None:
    running, one, _ = two
    one.mode = mode
    for _ in range(4):
        if streamed:
            assert text_of(stream(running)[0]) == TEXT
        else:
            assert ask(running).json()["choices"][0]["message"]["content"] == TEXT
    assert running.retries >= 1


def test_a_server_that_hangs_is_given_up_and_another_asked() -> None:
    with engines(Engine("m"), Engine("m")) as (one, other):
        one.mode = "hang"
        with gateway(pool(one, other), gateway={"stall_timeout_s": 3}) as running:
            assert all(text_of(stream(running)[0]) == TEXT for _ in range(3))


def test_a_server_nobody_listens_at_is_out_at_once_and_comes_back(
    two: tuple[Running, Engine, Engine],
) -> None:
    running, one, _ = two
    one.kill()
    for _ in range(6):
        assert ask(running).status_code == 200
    wait_for(lambda: running.state(0) == "out")
    one.revive()
    wait_for(lambda: running.state(0) == "up")
    n = len(one.asked)
    for _ in range(4):
        ask(running)
    assert len(one.asked) > n


def test_an_engine_that_fails_requests_is_ejected_though_its_health_check_passes(
    two: tuple[Running, Engine, Engine],
) -> None:
    running, one, _ = two
    one.mode = "http_500"
    wait_for(lambda: ask(running).status_code == 200 and running.pools.all[0].n_failed >= 3)
    assert only(running, "parlay_upstream_ejections_total") >= 1


def test_an_engine_whose_health_check_fails_is_ejected_before_anyone_asks_it(
    two: tuple[Running, Engine, Engine],
) -> None:
    running, one, _ = two
    one.health = 503
    wait_for(lambda: running.state(0) == "out")
    n = len(one.asked)
    for _ in range(4):
        assert ask(running).status_code == 200
    assert len(one.asked) == n
    wait_for(lambda: "upstream_out" in running.service.alerts.active)


def test_a_hanging_health_check_is_a_failed_one() -> None:
    with engines(Engine("m")) as (one,):
        one.mode = "hang_health"
        with gateway(pool(one), wait=False, limits={"health_timeout_s": 0.2}) as running:
            wait_for(lambda: running.state(0) == "out")
            refused = ask(running)
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "no_upstream"
            assert httpx.get(f"{running.url}/health").status_code == 503


def test_a_refusal_is_passed_on_and_not_repeated(two: tuple[Running, Engine, Engine]) -> None:
    running, one, other = two
    one.mode = other.mode = "http_400"
    refused = ask(running)
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert (error["message"], error["type"], error["param"]) == ("bad thing", "SomeError", "x")
    assert len(one.asked) + len(other.asked) == 1
    assert running.state(0) == running.state(1) == "up"


def test_busy_engines_are_not_broken_ones(two: tuple[Running, Engine, Engine]) -> None:
    running, one, other = two
    one.mode = other.mode = "http_429"
    refused = ask(running)
    assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
    assert running.state(0) == running.state(1) == "up"


def test_when_all_fail_one_line_says_so_and_what_broke_inside_stays_inside(
    two: tuple[Running, Engine, Engine],
) -> None:
    running, one, other = two
    one.mode = other.mode = "http_500"
    refused = ask(running)
    assert refused.status_code == 502
    assert "bad" not in refused.text and one.url not in refused.text
    assert len(one.asked) == len(other.asked) == 1


def test_a_lone_server_is_asked_again_when_it_only_hung_up() -> None:
    with engines(Engine("m")) as (one,), gateway(pool(one)) as running:
        one.mode = "cut_once"
        assert ask(running).status_code == 200
        assert len(one.asked) == 2


# -- after the first byte -----------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["cut", "garbled", "error", "oversize"])
def test_a_stream_that_breaks_ends_with_an_error_and_is_never_repeated(
    two: tuple[Running, Engine, Engine], mode: str
) -> None:
    running, one, other = two
    one.mode = other.mode = mode
    chunks, _ = stream(running)
    assert text_of(chunks) == "".join(WORDS[:3])
    assert chunks[-1]["error"]["type"] == "server_error"
    assert "secret" not in json.dumps(chunks)
    assert len(one.asked) + len(other.asked) == 1


def test_silence_in_the_middle_ends_a_stream() -> None:
    with engines(Engine("m")) as (one,):
        one.mode = "stall"
        with gateway(pool(one), gateway={"stall_timeout_s": 2}) as running:
            chunks, _ = stream(running)
            assert "error" in chunks[-1]


def test_an_answer_that_only_lacks_its_farewell_is_whole(
    two: tuple[Running, Engine, Engine],
) -> None:
    running, one, other = two
    one.mode = other.mode = "cut_farewell"
    chunks, _ = stream(running)
    assert text_of(chunks) == TEXT
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


class Clock:
    """The machine's, and as much later as is said."""

    def __init__(self) -> None:
        self.later_s = 0.0

    def perf_counter(self) -> float:
        return time.perf_counter() + self.later_s


def test_the_time_limit_keeps_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, chunks = Clock(), list[dict[str, Any]]()
    monkeypatch.setattr("parlay.front.remote.backend.perf_counter", clock.perf_counter)
    with engines(Engine("m", delay_s=0.1)) as (one,), gateway(pool(one)) as running:
        one.words = ["x"] * 10_000
        url, body = f"{running.url}/v1/chat/completions", {**ASK, "stream": True}
        with httpx.stream("POST", url, json=body) as response:
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    chunks.append(json.loads(line[6:]))
                    clock.later_s = 1000 * bool(text_of(chunks))
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert 1 <= len(text_of(chunks)) < 1000


def test_a_whole_answer_that_takes_too_long_keeps_what_is_there() -> None:
    limit = {"request_timeout_s": 1.0}
    with (
        engines(Engine("m", delay_s=0.7)) as (one,),
        gateway(pool(one), server=limit) as running,
    ):
        (choice,) = ask(running).json()["choices"]
        assert choice["finish_reason"] == "length"
        assert TEXT.startswith(choice["message"]["content"]) and choice["message"]["content"]


def test_an_answer_that_does_not_begin_in_time_is_refused() -> None:
    limit = {"request_timeout_s": 0.5}
    with engines(Engine("m")) as (one,), gateway(pool(one), server=limit) as running:
        one.first_s = 5.0
        refused = ask(running)
        assert refused.status_code == 504
        assert refused.json()["error"]["code"] == "timeout"


def test_a_whole_answer_over_the_limit_is_refused() -> None:
    with engines(Engine("m")) as (one,):
        one.mode = "oversize"
        with gateway(pool(one), limits={"max_answer_mb": 0.1, "retries": 0}) as running:
            refused = ask(running)
            assert refused.status_code == 502 and "larger than" in refused.text


# -- clients ------------------------------------------------------------------------------------


def test_a_client_that_leaves_stops_the_engine() -> None:
    with engines(Engine("m", delay_s=0.05)) as (one,), gateway(pool(one)) as running:
        one.words = ["x"] * 200
        body = {**ASK, "stream": True}
        with httpx.stream("POST", f"{running.url}/v1/chat/completions", json=body) as response:
            next(response.iter_lines())
        wait_for(lambda: one.n_left == 1)
        wait_for(lambda: running.pools.n_in_flight == 0)
        gone = 'parlay_requests_total{endpoint="chat",status="499"}'
        wait_for(lambda: only(running, gone) == 1)


def test_a_client_that_leaves_before_the_first_byte_stops_the_engine_too() -> None:
    with engines(Engine("m")) as (one,), gateway(pool(one)) as running:
        one.first_s = 5
        with sending(running, {**ASK, "stream": True}):
            wait_for(lambda: running.pools.n_in_flight == 1)
        wait_for(lambda: running.pools.n_in_flight == 0)


def held_back(engine: Engine) -> bool:
    """Whether it has sent something, and now nothing more."""
    before = engine.n_sent
    time.sleep(0.3)
    return engine.n_sent == before > 0


@contextmanager
def sending(running: Running, asked: dict[str, Any]) -> Iterator[socket.socket]:
    """A request of somebody who leaves at the block's end, however far it is."""
    host, port = running.url.removeprefix("http://").split(":")
    body = json.dumps(asked).encode()
    with socket.create_connection((host, int(port))) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body)
        yield client


@contextmanager
def slow_reader(running: Running, engine: Engine) -> Iterator[None]:
    """A client that has read the first bytes of 30 MB, and no more."""
    engine.words = ["x" * 10_000] * 3000
    with sending(running, {**ASK, "stream": True}) as client:
        client.recv(4096)
        wait_for(lambda: held_back(engine))
        yield


def test_a_slow_reader_holds_the_engine_back_and_fills_no_memory() -> None:
    with engines(Engine("m")) as (one,), gateway(pool(one)) as running:
        with slow_reader(running, one):
            assert one.n_sent < 15_000_000
        wait_for(lambda: running.pools.n_in_flight == 0)


def test_whoever_is_still_connected_at_the_end_is_hung_up_on() -> None:
    """A transport that nobody closed said so in whichever test ran when it was collected."""
    with unclosed() as told, engines(Engine("m")) as (one,), ExitStack() as clients:
        with gateway(pool(one), server={"drain_s": 0}) as running:
            clients.enter_context(slow_reader(running, one))
        gc.collect()  # while its peers are still there
    assert not told


def test_what_is_no_request_is_refused_with_the_reason(
    two: tuple[Running, Engine, Engine],
) -> None:
    running, one, other = two
    url = f"{running.url}/v1/chat/completions"
    assert httpx.post(url, content=b"{").json()["error"]["code"] == "invalid_json"
    assert httpx.post(url, content=b"[]").status_code == 400
    for path in ("chat/completions", "messages"):
        empty = httpx.post(f"{running.url}/v1/{path}", json={}).json()["error"]
        assert empty["message"].startswith(("messages", "model")), empty
    assert ask(running, n=9).json()["error"]["param"] == "n"
    assert "messages" in httpx.post(url, json={"model": "x"}).json()["error"]["message"]
    assert "at most 8" in ask(running, n=9).json()["error"]["message"]
    assert "window" in ask(running, speculation={"window": 3}).json()["error"]["message"]
    assert "unknown" in ask(running, speculation={"policy": "q"}).json()["error"]["message"]
    assert httpx.post(f"{running.url}/tokenize", json={"content": "x"}).status_code == 501
    assert one.asked == other.asked == []


def test_too_many_are_told_when_to_come_back() -> None:
    with engines(Engine("m")) as (one,):
        limits = {"queue_size": 1}
        with gateway(pool(one, max_concurrent=1), server=limits) as running:
            found: list[int] = []
            with talking([one], lambda: found.append(ask(running).status_code), 4):
                wait_for(lambda: len(found) == 2)
                assert found == [429, 429]
            assert sorted(found) == [200, 200, 429, 429]
            assert len(one.asked) == 2
