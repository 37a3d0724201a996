"""Never in the dark: what is told of answers adds up, wherever it is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests import doors

ASKED: dict[str, Any] = {"prompt": "on and on and on", "door": "completions", "max_tokens": 30}


def test_metrics_move_with_what_the_answer_says(server: doors.Server) -> None:
    before = server.metrics()
    told = server.ask(**ASKED)
    doors.until(lambda: server.metrics() != before)
    after = server.metrics()

    def moved(name: str) -> float:
        found = {key: after[key] - before.get(key, 0.0) for key in after if key.startswith(name)}
        return sum(found.values())

    numbers = told.speculation
    assert moved("parlay_drafted_tokens_total") == numbers["drafted"] > 0
    assert moved("parlay_accepted_tokens_total") == numbers["accepted"]
    assert moved("parlay_generated_tokens_total") == numbers["generated"] == 30
    assert moved("parlay_rounds_total") == numbers["rounds"]
    assert moved('parlay_requests_total{endpoint="completions",status="200"}') == 1
    assert moved("parlay_time_to_first_token_seconds_count") == 1
    first = 'parlay_position_drafted_total{position="1"}'
    assert moved(first) == sum(numbers["accepted_histogram"].values())


def test_an_answers_numbers_add_up(server: doors.Server) -> None:
    numbers = server.ask(**ASKED).speculation
    rounds, accepted = numbers["rounds"], numbers["accepted"]
    assert numbers["generated"] == 30 == rounds + accepted
    assert sum(numbers["windows"].values()) == rounds
    assert sum(int(k) * n for k, n in numbers["accepted_histogram"].items()) == accepted
    assert numbers["acceptance_length"] == pytest.approx(30 / rounds, abs=1e-3)
    assert numbers["token_acceptance"] == pytest.approx(accepted / numbers["drafted"], abs=1e-3)
    assert numbers["e2e_ms"] >= numbers["ttft_ms"] > 0


def test_every_token_says_where_it_came_from(server: doors.Server) -> None:
    told = server.streamed(
        "on and on and on", max_tokens=40, stream_options={"include_origins": True}
    )
    choices = [choice for event in told.events for choice in event["choices"]]
    tokens = [token for choice in choices for token in choice.get("origins", [])]
    assert "".join(token["text"] for token in tokens) == told.text
    numbers = told.speculation
    accepted = [token for token in tokens if token["origin"] == "accepted"]
    assert (len(tokens), len(accepted)) == (numbers["generated"], numbers["accepted"])


def test_the_request_log_has_a_line_for_each_request_and_no_prompt(
    model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "logs" / "requests.jsonl"
    with doors.server(model, monitoring__request_log=str(path)) as server:
        whole = server.ask("my secret", "completions", max_tokens=30)
        with server.stream("my secret", "completions", max_tokens=30) as stream:
            lines = list(stream.response.iter_lines())
            assert "data: [DONE]" in lines
            assert len(path.read_text().splitlines()) == 2
        server.post("/v1/completions", {"prompt": 5})
    first, second, third = map(json.loads, path.read_text().splitlines())
    assert first["request_id"] == whole.body["id"]
    for name in ("drafted", "accepted", "token_acceptance"):
        assert first[name] == whole.speculation[name]
    assert first["e2e_ms"] >= first["ttft_ms"] > 0
    assert second["stream"] is True and third["status"] == 400
    assert "secret" not in path.read_text()
    assert path.stat().st_mode & 0o077 == 0


def test_a_client_that_left_is_logged_as_such(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    with doors.server(model, monitoring__request_log=str(path)) as server:
        with server.stream("hello", "completions", **doors.ENDLESS) as stream:
            stream.first_words()
        doors.until(lambda: bool(path.read_text()))
        counted = 'parlay_requests_total{endpoint="completions",status="499"}'
        doors.until(lambda: server.metrics().get(counted) == 1)
    (told,) = map(json.loads, path.read_text().splitlines())
    assert (told["status"], told["finish_reason"]) == (499, "cancelled")


def test_prompts_are_logged_only_when_asked_for(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    logged = {"monitoring__request_log": str(path), "monitoring__log_prompts": True}
    with doors.server(model, **logged) as server:
        told = server.ask("hello", "completions")
    line = json.loads(path.read_text())
    assert line["prompt"] == "hello" and line["answers"] == [told.text]


def test_slots_and_health_tell_the_state(server: doors.Server) -> None:
    with server.stream("hello", "completions", **doors.ENDLESS) as stream:
        stream.first_words()
        assert server.n_busy == 1
    doors.until(server.is_idle)
    slots = server.get("/slots").json()
    assert [slot["id"] for slot in slots] == list(range(4))
    health = server.health()
    assert (health["status"], health["mode"]) == ("ok", "exact")


def test_tokens_go_there_and_back(server: doors.Server) -> None:
    assert server.text(server.tokens("hello the sea")) == "hello the sea"
    body = {"content": " the", "with_pieces": True}
    found = server.post("/tokenize", body).json()["tokens"]
    assert [token["piece"] for token in found] == [" the"]
