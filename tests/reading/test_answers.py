"""Answers of every engine, in our words; and nothing that is read can break the reader."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from parlay.reading.answers import AnswerEvent, event_of, object_of

KEYS = ["choices", "delta", "message", "usage", "timings", "metrics", "speculation", "stats"]
KEYS += ["speculative_decoding", "num_draft_tokens", "num_accepted_draft_tokens", "error"]
KEYS += ["acceptance_histogram", "num_spec_steps", "predicted_n", "draft_n", "drafted", "accepted"]
KEYS += ["windows", "finish_reason", "tool_calls", "function", "arguments"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=6)
    ),
    max_leaves=20,
)


def vllm(**more: Any) -> dict[str, Any]:
    told = {
        "mean_acceptance_length": 2.0,
        "draft_acceptance_rate": 4 / 12,
        "acceptance_histogram": [2, 1, 0, 1],
        "num_spec_steps": 4,
        "num_accepted_draft_tokens": 4,
        "num_draft_tokens": 12,
        "num_spec_tokens": 3,
    }
    return {"choices": [], "metrics": {"speculative_decoding": {**told, **more}}}


def test_vllm_tells_accepted_lengths_as_a_histogram() -> None:
    told = event_of(vllm()).speculation
    assert told is not None
    assert (told.drafted, told.accepted, told.speculated_rounds) == (12, 4, 4)
    assert (told.tried_at, told.accepted_at) == ([4, 2, 1], [2, 1, 1])
    assert told.fully_accepted == 1


def test_full_acceptance_is_not_known_where_drafts_were_short() -> None:
    told = event_of(vllm(num_draft_tokens=10)).speculation
    assert told is not None and told.fully_accepted is None


def test_vllm_tells_its_decoding_time() -> None:
    chunk = {"metrics": {"generation_time_ms": 250.0, "speculative_decoding": None}}
    assert event_of(chunk) == AnswerEvent(server_decode_s=0.25)


def test_llama_cpp_without_drafts_has_drafted_nothing() -> None:
    event = event_of({"timings": {"predicted_n": 7, "predicted_ms": 70.0}})
    assert event.speculation is not None
    assert (event.speculation.drafted, event.speculation.rounds) == (0, 7)
    assert event.server_decode_s == 0.07


def test_our_own_server_tells_how_many_tokens_came_with_the_first() -> None:
    event = event_of({"timings": {"predicted_ms": 70.0, "first_n": 5}})
    assert AnswerEvent().then(event).n_first == 5
    assert event_of({"timings": {"predicted_ms": 70.0, "first_n": 0}}).n_first is None


def test_our_own_words_come_before_llama_cpps() -> None:
    own = {"drafted": 6, "accepted": 5, "rounds": 2}
    event = event_of({"speculation": own, "timings": {"predicted_n": 7, "draft_n": 1}})
    assert event.speculation is not None and event.speculation.drafted == 6


def test_a_gateway_that_was_told_nothing_leaves_the_engines_figures() -> None:
    unknown = {"drafted": None, "accepted": None}
    event = event_of({"speculation": unknown, "timings": {"predicted_n": 7, "draft_n": 3}})
    assert event.speculation is not None and event.speculation.drafted == 3


def test_a_whole_answer_is_read_like_its_only_chunk() -> None:
    message = {"role": "assistant", "content": "hi", "reasoning_content": "so "}
    usage = {
        "completion_tokens": 2,
        "prompt_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    event = event_of({"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage})
    assert (event.text, event.finish_reason) == ("so hi", "stop")
    assert (event.n_tokens, event.n_prompt, event.n_cached) == (2, 9, 4)


def test_a_plain_completion_has_text() -> None:
    assert event_of({"choices": [{"text": "abc", "finish_reason": None}]}).text == "abc"


def test_an_error_is_told_in_one_line() -> None:
    assert event_of({"error": {"message": "no\nroom"}}).error == "no room"
    assert event_of({"error": "gone"}).error == "gone"


@given(st.dictionaries(st.text(max_size=3), JSON, max_size=3) | JSON)
def test_no_answer_breaks_the_reader(value: Any) -> None:
    event = event_of(value if isinstance(value, dict) else {"choices": value})
    if event.speculation is not None:
        assert 0 <= event.speculation.accepted <= event.speculation.drafted


@given(st.binary(max_size=40))
def test_what_is_no_json_is_nothing(data: bytes) -> None:
    assert object_of(data) is None or isinstance(object_of(data), dict)


def test_json_of_another_kind_is_empty_and_depth_breaks_nothing() -> None:
    assert object_of("[1]") == {}
    assert object_of("[" * 100_000) is None


def test_what_is_known_after_several_chunks_is_the_last_that_each_field_was_told() -> None:
    chunks = [
        AnswerEvent(text="a", n_prompt=4, n_tokens=1),
        AnswerEvent(text="b", n_tokens=2, finish_reason="stop"),
        AnswerEvent(finish_reason=""),
    ]
    known = AnswerEvent()
    for chunk in chunks:
        known = known.then(chunk)
    assert known == AnswerEvent(n_prompt=4, n_tokens=2, finish_reason="stop")
