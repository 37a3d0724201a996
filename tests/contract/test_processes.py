"""Servers as processes: they drain, are killed, begin anew, and leave nothing behind."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests import doors
from tests.doors import ServerProcess
from tests.serving import PATIENCE_S

LONG_DRAIN = {"server__drain_s": 2 * PATIENCE_S}
SHORT: dict[str, Any] = {"door": "completions", "max_tokens": 20}


@pytest.fixture
def supervised(model: Path, tmp_path: Path) -> Iterator[ServerProcess]:
    """One slot, so that all but one request wait."""
    options = {"runtime__slots": 1, "monitoring__request_log": str(tmp_path / "log.jsonl")}
    with doors.server_process(tmp_path, model, **options) as found:
        yield found


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_sigterm_lets_the_answer_finish(model: Path, tmp_path: Path) -> None:
    with doors.server_process(tmp_path, model, **LONG_DRAIN) as server:
        options = {**doors.ENDLESS, "max_tokens": 400}
        with server.stream("hello", "completions", **options) as stream:
            stream.first_words()
            server.signal(signal.SIGTERM)
            events = list(stream.events())
        assert events[-1]["choices"][0]["finish_reason"] == "length"
        assert server.process.wait(PATIENCE_S) == 0


def test_a_second_sigterm_gives_up_what_is_open_and_tells_it(model: Path, tmp_path: Path) -> None:
    with (
        doors.server_process(tmp_path, model, **LONG_DRAIN) as server,
        server.stream("hello", "completions", **doors.ENDLESS) as stream,
    ):
        stream.first_words()
        server.signal(signal.SIGTERM)
        doors.until(server.takes_nobody)  # while the answer goes on
        assert server.process.poll() is None
        server.signal(signal.SIGTERM)
        *_, last = stream.events()
        assert last["error"]["code"] == "shutting_down"
        assert server.process.wait(PATIENCE_S) == 0


def test_a_drain_that_takes_too_long_ends_with_the_reason(model: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    options = {"server__drain_s": 0.5, "monitoring__request_log": str(log)}
    with doors.server_process(tmp_path, model, **options) as server:
        with server.stream("hello", "completions", **doors.ENDLESS) as stream:
            stream.first_words()
            server.signal(signal.SIGTERM)
            *_, last = stream.events()
        assert last["error"]["code"] == "shutting_down"
        assert server.process.wait(PATIENCE_S) == 0
    (line,) = lines_of(log)
    assert (line["status"], line["error"]) == (503, "shutting_down")


def test_a_death_of_the_engine_costs_only_the_answers_that_had_begun(
    supervised: ServerProcess, tmp_path: Path
) -> None:
    plain = supervised.ask("waiting", **SHORT).text
    engine = supervised.engine()
    with ThreadPoolExecutor(2) as pool:
        with supervised.stream("hello", "completions", **doors.ENDLESS) as stream:
            stream.first_words()
            waiting = [
                pool.submit(ask, "waiting", **SHORT)
                for ask in (supervised.ask, supervised.streamed)
            ]
            doors.until(lambda: supervised.n_waiting == 2)
            engine.kill()
            *_, told = stream.events()
        assert [one.result(PATIENCE_S).text for one in waiting] == [plain, plain]
    assert told["error"]["code"] == "engine_died"
    assert supervised.engine().pid != engine.pid
    statuses = sorted(line["status"] for line in lines_of(tmp_path / "log.jsonl"))
    assert statuses == [200, 200, 200, 500]
    assert supervised.end() == 0


def test_the_official_client_raises_where_an_answer_was_cut_by_a_death(
    supervised: ServerProcess,
) -> None:
    with supervised.openai() as client:
        stream = client.completions.create(
            model="m", prompt="hello", stream=True, max_tokens=10**6,
            extra_body={"context_full": "slide"}, temperature=0,
        )  # fmt: skip
        next(stream)
        supervised.engine().kill()
        with pytest.raises(openai.APIError, match="engine"):
            for _ in stream:
                pass


def test_a_request_that_is_there_at_every_death_is_not_tried_for_ever(
    supervised: ServerProcess,
) -> None:
    body = {"prompt": "hello", **doors.ENDLESS}
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(supervised.post, "/v1/completions", body)
        for _ in range(2):
            doors.until(lambda: supervised.health().get("status") == "ok")
            doors.until(lambda: supervised.n_busy == 1)
            engine = supervised.engine()
            engine.kill()
            engine.wait(PATIENCE_S)
        answer = asked.result(PATIENCE_S)
    assert answer.status_code == 500 and answer.json()["error"]["code"] == "engine_died"
    doors.until(lambda: supervised.health().get("status") == "ok")
    assert supervised.ask(**SHORT).n_generated == 20


def test_an_engine_that_dies_too_often_stays_dead(model: Path, tmp_path: Path) -> None:
    with doors.server_process(tmp_path, model, server__max_restarts=1) as server:
        for _ in range(2):
            doors.until(lambda: server.health().get("status") == "ok")
            server.engine().kill()
        assert server.process.wait(PATIENCE_S) == 1


def test_a_front_that_is_killed_takes_its_engine_along_and_leaves_its_port(
    supervised: ServerProcess,
) -> None:
    engine, port = supervised.engine(), int(supervised.url.rpartition(":")[2])
    supervised.process.kill()
    engine.wait(PATIENCE_S)
    assert doors.left_by(port)


def test_sudden_death_loses_no_line_of_an_answered_request(model: Path, tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    options = {"monitoring__request_log": str(log)}
    answered: list[str] = []

    def ask_again_and_again(server: ServerProcess) -> None:
        body = {"prompt": "hello", "max_tokens": 5, "temperature": 0}
        try:
            while True:
                answered.append(server.post("/v1/completions", body).json()["id"])
        except (httpx.HTTPError, ValueError, KeyError):
            return

    with doors.server_process(tmp_path, model, **options) as server:
        threads = [threading.Thread(target=ask_again_and_again, args=(server,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        doors.until(lambda: len(answered) > 20)
        server.kill()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert set(answered) <= {line.get("request_id") for line in lines_of(log)}


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs Linux's tables")
def test_a_client_that_never_reads_does_not_keep_a_second_sigterm_waiting(
    model: Path, tmp_path: Path
) -> None:
    long = ["a name of many bytes " * 1000]  # in every event: buffers are full soon
    with doors.server_process(tmp_path, model, model__alias=long, **LONG_DRAIN) as server:
        body = {"prompt": "hello", "stream": True, **doors.ENDLESS}
        with server.sending(body, "completions", receive_buffer=4096):
            doors.until(lambda: unsent(server) > 1 << 16)  # more than it will ever take
            server.signal(signal.SIGTERM)
            doors.until(server.takes_nobody)
            assert server.process.poll() is None
            server.signal(signal.SIGTERM)
            server.process.wait(PATIENCE_S)


def unsent(server: ServerProcess) -> int:
    """Bytes in the send queues of established connections of its port."""
    port = f":{int(server.url.rpartition(':')[2]):04X}"
    lines = [line.split() for line in Path("/proc/net/tcp").read_text("ascii").splitlines()[1:]]
    own = [line for line in lines if line[3] == "01" and line[1].endswith(port)]
    return sum(int(line[4].split(":")[0], 16) for line in own)


def test_sighup_takes_over_what_it_can_and_drops_no_request(model: Path, tmp_path: Path) -> None:
    options = {**LONG_DRAIN, "model__alias": ["old"]}
    with (
        doors.server_process(tmp_path, model, **options) as server,
        server.stream("hello", "completions", **doors.ENDLESS) as stream,
    ):
        stream.first_words()
        doors.deployment(server.file, model, **{**options, "model__alias": ["new"]})
        server.signal(signal.SIGHUP)
        doors.until(lambda: server.health().get("model") == "new")
        stream.first_words()
        server.file.write_text("runtime: {slot: 3}")  # a mistake changes nothing
        server.signal(signal.SIGHUP)
        doors.until(lambda: "reload" in [one["kind"] for one in server.figures()["alerts"]])
        assert server.ask(**SHORT).n_generated == 20
        stream.first_words()


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        ({}, 0, "can be served"),
        ({"server__host": "0.0.0.0"}, 1, "no API key is set"),
        ({"model__drafter": "gone.gguf"}, 1, "no file at"),
        ({"runtime__vram_budget_gb": 0.001}, 1, "the limit is"),
    ],
)
def test_a_check_says_whether_it_could_be_served(
    model: Path, tmp_path: Path, given: dict[str, Any], code: int, said: str
) -> None:
    file = doors.deployment(tmp_path / "parlay.yaml", model, **given)
    done = doors.verb("serve", file, "--check")
    assert done.exit_code == code
    assert said in done.output + str(done.exception)
