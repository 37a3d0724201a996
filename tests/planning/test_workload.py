"""Request logs: what is read from them, and what follows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parlay.errors import BadRequest
from parlay.planning.workload import (
    LoggedRequest,
    amdahl,
    parse_line,
    profile,
    read_logs,
    rules,
)
from parlay.routing import Rule

OURS: dict[str, Any] = {
    "request_id": "r",
    "endpoint": "chat",
    "policy": "code",
    "prompt_tokens": 100,
    "generated": 200,
    "drafted": 100,
    "accepted": 60,
    "queue_ms": 5.0,
    "ttft_ms": 105.0,
    "e2e_ms": 1105.0,
    "speedup": 2.0,
}
USAGE = {"prompt_tokens": 10, "completion_tokens": 20}


def parse(record: object) -> LoggedRequest | None:
    return parse_line(json.dumps(record).encode())


def request(route: str = "r", **changes: Any) -> LoggedRequest:
    values: dict[str, Any] = {
        "endpoint": "chat",
        "n_prompt": 100,
        "n_answer": 200,
        "prefill_ms": 100.0,
        "decode_ms": 900.0,
    }
    return LoggedRequest(route, **{**values, **changes})


def test_our_own_log() -> None:
    found = parse(OURS)
    assert found == LoggedRequest("chat/code", "chat", 100, 200, 100.0, 1000.0, 100, 60, 2.0)


def test_an_answer_whose_client_left_is_no_measure() -> None:
    assert parse({**OURS, "status": 499}) is None
    assert parse({**OURS, "status": 200}) == parse(OURS)


def test_an_openai_answer_with_llama_cpp_s_timings() -> None:
    timings = {"prompt_ms": 3.0, "predicted_ms": 7.0, "draft_n": 4, "draft_n_accepted": 2}
    found = parse({"object": "chat.completion", "model": "m", "usage": USAGE, "timings": timings})
    assert found == LoggedRequest("m", "chat", 10, 20, 3.0, 7.0, 4, 2)


def test_a_batch_line_and_a_wrapped_answer() -> None:
    batch = {"custom_id": "1", "response": {"status_code": 200, "body": {"usage": USAGE}}}
    assert parse(batch) == LoggedRequest("all", None, 10, 20, None, None)
    wrapped = {"path": "/v1/completions", "ttft_ms": 4, "latency_ms": 10, "usage": USAGE}
    assert parse(wrapped) == LoggedRequest("/v1/completions", "completions", 10, 20, 4.0, 6.0)


@pytest.mark.parametrize(
    "record",
    [
        [],
        3,
        {},
        {"usage": 3},
        {"usage": {"completion_tokens": "x"}},
        {"endpoint": "chat", "status": 429, "error": "queue_full"},
        {**OURS, "generated": 0},
    ],
)
def test_lines_that_tell_of_no_answer_are_skipped(record: object) -> None:
    assert parse(record) is None


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=200))
def test_no_line_is_an_error(line: bytes) -> None:
    parse_line(line)


VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from([*OURS, "usage", "timings", *USAGE]), inner, max_size=4)
    ),
    max_leaves=10,
)


# Other jobs share the machine: how long an example takes says nothing.
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(st.dictionaries(st.sampled_from([*OURS, "usage", "timings", "response"]), VALUES))
def test_no_record_is_an_error(record: dict[str, Any]) -> None:
    found = parse(record)
    if found is not None:
        profile([found] * 5, speedup=2.0)


def test_files_are_read_and_odd_lines_counted(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(f"{json.dumps(OURS)}\nnot json\n\n{json.dumps(OURS)}\n")
    log = read_logs([path, path])
    assert (len(log.requests), log.n_skipped) == (4, 2)
    with pytest.raises(BadRequest, match="cannot be read"):
        read_logs([tmp_path])


def test_the_share_of_decoding_is_that_of_plain_decoding() -> None:
    """900 ms at 2x were 1800 ms without a drafter."""
    (route,) = profile([request(speedup=2.0, n_drafted=10, n_accepted=6)] * 5)
    assert route.decode_share == pytest.approx(1800 / 1900)
    assert route.gain == pytest.approx(1900 / 1000)
    assert route.token_acceptance == pytest.approx(0.6)
    assert route.advice == "speculate"


def test_a_given_speedup_stands_in() -> None:
    (route,) = profile([request()] * 5, speedup=3.0)
    assert route.gain == pytest.approx(amdahl(0.9, 3.0))
    (unknown,) = profile([request()] * 5)
    assert (unknown.gain, unknown.advice) == (None, "unknown")


def test_a_prompt_heavy_route_decodes_plainly_and_a_rule_says_so() -> None:
    heavy = [request("rag", n_prompt=4000 + i, n_answer=20, decode_ms=2.0) for i in range(10)]
    chat = [request("chat")] * 20
    routes = profile([*heavy, *chat], speedup=2.0)
    assert [(r.name, r.advice) for r in routes] == [("chat", "speculate"), ("rag", "plain")]
    (entry,) = rules(routes, [*heavy, *chat])
    assert entry["when"] == {
        "min_prompt_tokens": 4001,
        "min_prompt_to_answer": 200,
        "endpoint": "chat",
    }
    rule = Rule.model_validate(entry)
    assert (rule.policy, rule.reason.value) == ("plain", "prompt_heavy")


def test_a_route_that_loses_decodes_plainly() -> None:
    own = [request("slow/er", speedup=0.8, n_drafted=9)] * 5
    routes = profile(own)
    assert routes[0].advice == "plain"
    (entry,) = rules(routes, own)
    assert (entry["name"], Rule.model_validate(entry).reason.value) == ("slow_er", "unprofitable")


def test_few_requests_or_no_times_give_no_advice() -> None:
    assert profile([request()] * 4, speedup=2.0)[0].advice == "unknown"
    untimed = [request(prefill_ms=None, decode_ms=None)] * 5
    assert "no times" in profile(untimed, speedup=2.0)[0].why
