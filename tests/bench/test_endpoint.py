"""Endpoints of every kind, from recorded answers over real sockets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from parlay.bench.endpoint import Client, EndpointArm, discover, file_name, parse_change, read_line
from parlay.bench.record import ArmInfo, Kind
from parlay.bench.subject import Ask, SubjectError, TimedOut
from parlay.bench.suite import Prompt
from parlay.errors import BadRequest
from parlay.reading import counters
from tests.bench.recorded import WORDS, Recorded, serve

PROMPT = Prompt("p", "chat", ({"role": "user", "content": "a haiku"},), 32)
ASK = Ask(PROMPT, 32, 0.0, 7, 300.0)
KINDS = ["llama.cpp", "vllm", "sglang", "ollama", "lmstudio", "parlay", "openai"]


@contextmanager
def arm_for(recorded: Recorded, **options: Any) -> Iterator[EndpointArm]:
    with serve(recorded) as url:
        client = Client(url, api_key=options.pop("api_key", None))
        server = discover(client)
        info = ArmInfo(name="x", kind=server.kind, method="unknown")
        yield EndpointArm(client, server, info, **options)
        client.close()


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_found_out_and_answers(kind: str) -> None:
    recorded = Recorded(kind, delay_s=0.01)
    with arm_for(recorded) as arm:
        assert arm.info.kind == kind
        reply = arm.ask(ASK)
    assert reply.text == "".join(WORDS)
    assert (reply.n_tokens, reply.counted) == (len(WORDS), "usage")
    assert 0 < reply.first_token_s < reply.wall_s
    assert 0 < reply.decode_s < reply.wall_s
    assert reply.finish_reason == "stop"


def test_llama_cpp_timings_give_its_own_clock_and_drafts() -> None:
    with arm_for(Recorded("llama.cpp")) as arm:
        reply = arm.ask(ASK)
    assert reply.server_decode_s == pytest.approx(0.07)
    told = reply.speculation
    assert told is not None
    assert (told.drafted, told.accepted, told.rounds) == (6, 4, 3)


def test_no_prompt_comes_from_a_cache() -> None:
    llama, vllm = Recorded("llama.cpp"), Recorded("vllm")
    with arm_for(llama) as arm:
        arm.ask(ASK)
    with arm_for(vllm) as arm:
        arm.ask(ASK)
        arm.ask(ASK)
    assert llama.asked[0]["cache_prompt"] is False
    assert vllm.asked[0]["cache_salt"] != vllm.asked[1]["cache_salt"]


def test_vllm_counters_are_read_as_differences() -> None:
    with arm_for(Recorded("vllm")) as arm:
        told = arm.ask(ASK).speculation
    assert told is not None
    assert (told.drafted, told.accepted, told.speculated_rounds) == (6, 3, 2)
    assert (told.tried_at, told.accepted_at) == ([2, 2], [2, 1])


def test_sglang_tells_an_acceptance_length() -> None:
    with arm_for(Recorded("sglang")) as arm:
        told = arm.ask(ASK).speculation
    assert told is not None
    assert told.rounds == 3  # seven tokens at 2.5 a step


def test_lm_studio_tells_what_became_of_drafts() -> None:
    recorded = Recorded("lmstudio")
    with arm_for(recorded) as arm:
        told = arm.ask(ASK).speculation
    assert told is not None
    assert (told.drafted, told.accepted) == (6, 3)
    assert recorded.asked[0]["path"] == "/api/v0/chat/completions"


def test_ollama_is_asked_its_own_way() -> None:
    recorded = Recorded("ollama")
    with arm_for(recorded) as arm:
        reply = arm.ask(ASK)
    assert recorded.asked[0]["options"] == {"temperature": 0.0, "seed": 7, "num_predict": 32}
    assert (reply.n_prompt, reply.speculation) == (9, None)
    assert reply.server_decode_s == pytest.approx(0.07)


def test_own_server_tells_where_the_time_went() -> None:
    with arm_for(Recorded("parlay")) as arm:
        told = arm.ask(ASK).speculation
    assert told is not None
    assert (told.rounds, told.windows, told.verify_s) == (3, {"2": 2, "0": 1}, 0.06)


def test_without_usage_chunks_are_counted_and_said_to_be() -> None:
    with arm_for(Recorded("openai", usage=False)) as arm:
        reply = arm.ask(ASK)
    assert (reply.n_tokens, reply.counted) == (len(WORDS), "chunks")


def test_changed_field_and_key_are_sent() -> None:
    recorded = Recorded("openai")
    with arm_for(recorded, extra={"speculation": {"enabled": False}}, api_key="secret") as arm:
        arm.ask(ASK)
    assert recorded.asked[0]["speculation"] == {"enabled": False}
    assert recorded.headers[0]["Authorization"] == "Bearer secret"


def test_tools_are_sent() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    recorded = Recorded("openai")
    prompt = Prompt("p", "agent", PROMPT.messages, 32, (tool,))
    with arm_for(recorded) as arm:
        arm.ask(Ask(prompt, 8, 0.0, 0, 300.0))
    assert recorded.asked[0]["tools"] == [tool]


STRUCTURED = Prompt(
    "p", "chat", PROMPT.messages, 32, json_schema={"type": "object"}, prediction="old text"
)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_asked_for_the_schema_and_only_our_own_for_the_prediction(kind: str) -> None:
    recorded = Recorded(kind)
    with arm_for(recorded) as arm:
        arm.ask(Ask(STRUCTURED, 8, 0.0, 0, 300.0))
    asked = recorded.asked[0]
    if kind == "ollama":
        assert asked["format"] == {"type": "object"}
    else:
        assert asked["response_format"]["json_schema"]["schema"] == {"type": "object"}
    told = {"type": "content", "content": "old text"}
    assert asked.get("prediction") == (told if kind == "parlay" else None)


def test_slow_trickle_runs_into_the_time_limit() -> None:
    recorded = Recorded("openai", delay_s=0.05, text=["x"] * 60)
    with arm_for(recorded) as arm, pytest.raises(TimedOut):
        arm.ask(Ask(PROMPT, 32, 0.0, 0, 0.5))


def test_silent_server_runs_into_the_time_limit() -> None:
    recorded = Recorded("openai", delay_s=1.0)
    with arm_for(recorded) as arm, pytest.raises(TimedOut):
        arm.ask(Ask(PROMPT, 32, 0.0, 0, 0.3))


def test_refusal_names_status_and_reason() -> None:
    recorded = Recorded("openai", status=404)
    with arm_for(recorded) as arm, pytest.raises(SubjectError, match="HTTP 404: no such model"):
        arm.ask(ASK)


def test_empty_answer_is_a_failure() -> None:
    with arm_for(Recorded("openai", text=[], usage=False)) as arm:
        reply = arm.ask(ASK)
    assert reply.n_tokens == 0  # it said "stop": an answer without tokens, listed as too short


def test_nobody_there_is_said_so() -> None:
    with pytest.raises(SubjectError, match="no server answers there"):
        discover(Client("http://127.0.0.1:9"))


@pytest.mark.parametrize("url", ["", "localhost:8080", "ftp://x", "file:///etc/passwd"])
def test_addresses_must_be_http(url: str) -> None:
    with pytest.raises(BadRequest, match="is no address"):
        Client(url)


def test_warm_up_runs_two_requests() -> None:
    recorded = Recorded("openai")
    with arm_for(recorded) as arm:
        arm.warm_up(ASK)
    assert len(recorded.asked) == 2


# ---- answers nobody should trust


@pytest.mark.parametrize(
    "line",
    [
        "data: not json",
        'data: {"error": {"message": "out of memory"}}',
        'data: {"error": "broken"}',
    ],
)
def test_errors_inside_a_stream_are_failures(line: str) -> None:
    with pytest.raises(SubjectError):
        read_line("openai", line)


@pytest.mark.parametrize(
    "line",
    [
        'data: {"choices": [{"delta": {"content": 5}}], "usage": {"completion_tokens": "many"}}',
        'data: {"choices": "none", "timings": {"predicted_n": -3, "draft_n": 1e99}}',
        'data: {"choices": [], "usage": {"completion_tokens": true}}',
        "data: []",
    ],
)
def test_odd_shapes_are_left_out(line: str) -> None:
    kinds: tuple[Kind, ...] = ("openai", "llama.cpp", "lmstudio", "parlay")
    for kind in kinds:
        event = read_line(kind, line)
        assert event is not None
        assert event.n_tokens is None
        assert event.text == ""


def test_metrics_page_full_of_rubbish_is_read_without_harm() -> None:
    page = "vllm:spec_decode_num_draft_tokens_total NaN\n" * 3 + "\x00{\nfoo bar\n{} 1\n"
    assert counters.parse(page).totals == {}


def test_counters_that_went_back_count_nothing() -> None:
    before = counters.parse("vllm:spec_decode_num_draft_tokens_total 100")
    after = counters.parse("vllm:spec_decode_num_draft_tokens_total 3")  # the server restarted
    found = counters.added(before, after, 10)
    assert found is not None
    assert found.drafted == 0


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("speculation=false", {"speculation": False}),
        ("speculation.window=4", {"speculation": {"window": 4}}),
        ("draft=none", {"draft": "none"}),
        ('{"a": {"b": 1}}', {"a": {"b": 1}}),
    ],
)
def test_changed_fields_are_parsed(text: str, fields: dict[str, object]) -> None:
    assert parse_change(text) == fields


@pytest.mark.parametrize("text", ["", "speculation", "=3", "{broken"])
def test_bad_changes_are_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        parse_change(text)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("/home/somebody/models/a.gguf", "a"),
        ("C:\\Users\\somebody\\b.gguf", "b"),
        ("org/model", "model"),
        ("", "unnamed"),
    ],
)
def test_model_names_lose_their_folders(text: str, name: str) -> None:
    assert file_name(text) == name
