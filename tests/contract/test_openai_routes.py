"""Routes act: by endpoint, alias, shape, tools, header and tag; the request's own word is last."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests import doors

RULES: list[dict[str, Any]] = [
    {"name": "tagged", "when": {"tag": "batch"}, "policy": "plain"},
    {"name": "team", "when": {"header": {"X-Team": "r*"}}, "policy": "plain", "reason": "request"},
    {"name": "alias", "when": {"model": "small*"}, "policy": "plain", "reason": "low_acceptance"},
    {
        "name": "heavy",
        "when": {"min_prompt_tokens": 60, "max_answer_tokens": 9},
        "policy": "plain",
        "reason": "prompt_heavy",
    },
    {"name": "talk", "when": {"endpoint": "chat"}, "window": 1},
    {"name": "text", "draft": "suffix"},
]
BODY: dict[str, Any] = {"prompt": "on on on on", "max_tokens": 30, "temperature": 0}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "on on on"}], "max_tokens": 30}


routed = doors.server_on("model", routes=RULES, model__drafter="suffix")


@pytest.mark.parametrize(
    ("body", "headers", "policy", "reason"),
    [
        (BODY | {"metadata": {"tag": "batch"}}, {}, "tagged", "policy"),
        (BODY, {"X-Parlay-Tag": "batch"}, "tagged", "policy"),
        (BODY, {"X-Team": "red"}, "team", "request"),
        (BODY | {"model": "small-1"}, {}, "alias", "low_acceptance"),
        (BODY | {"prompt": "q" * 80, "max_tokens": 9}, {}, "heavy", "prompt_heavy"),
    ],
)
def test_plain_routes_say_their_reason(
    routed: doors.Server, body: dict[str, Any], headers: dict[str, str], policy: str, reason: str
) -> None:
    answer = httpx.post(f"{routed.url}/v1/completions", json=body, headers=headers).json()
    assert answer["speculation"]["policy"] == policy
    assert answer["speculation"]["fallbacks"].keys() == {reason}


def test_speculating_routes_choose_proposers_and_windows(routed: doors.Server) -> None:
    text = httpx.post(f"{routed.url}/v1/completions", json=BODY).json()["speculation"]
    assert text["policy"] == "text" and set(text["proposers"]) <= {"suffix"}
    chat = httpx.post(f"{routed.url}/v1/chat/completions", json=CHAT).json()["speculation"]
    assert chat["policy"] == "talk" and set(chat["windows"]) <= {"0", "1"}


def test_the_request_has_the_last_word(routed: doors.Server) -> None:
    body = BODY | {"metadata": {"tag": "batch"}, "speculation": True}
    found = httpx.post(f"{routed.url}/v1/completions", json=body).json()["speculation"]
    assert found["policy"] == "request" and "policy" not in found["fallbacks"]


def ask(server: doors.Server, path: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", json=body)


def test_several_prompts_are_answered_as_if_each_came_alone(routed: doors.Server) -> None:
    prompts = ["hello there", "on and on", "the"]
    options = {"max_tokens": 8, "temperature": 0.9, "seed": 5, "n": 2}
    together = ask(routed, "/v1/completions", prompt=prompts[:1], **options).json()
    alone = ask(routed, "/v1/completions", prompt=prompts[0], **options).json()
    assert [c["text"] for c in together["choices"]] == [c["text"] for c in alone["choices"]]
    both = ask(routed, "/v1/completions", prompt=prompts, **options | {"n": 1}).json()
    single = [ask(routed, "/v1/completions", prompt=p, **options).json() for p in prompts]
    assert [c["index"] for c in both["choices"]] == [0, 1, 2]
    assert [c["text"] for c in both["choices"]] == [s["choices"][0]["text"] for s in single]
    n_prompt = sum(s["usage"]["prompt_tokens"] for s in single)
    assert both["usage"]["prompt_tokens"] == n_prompt


def test_lists_of_tokens_are_prompts_too(routed: doors.Server) -> None:
    tokens = ask(routed, "/tokenize", content="hello there", add_special=True).json()["tokens"]
    options = {"max_tokens": 6, "temperature": 0}
    found = ask(routed, "/v1/completions", prompt=[tokens, tokens], **options).json()
    text = ask(routed, "/v1/completions", prompt="hello there", **options).json()
    assert [c["text"] for c in found["choices"]] == [text["choices"][0]["text"]] * 2


def test_a_gap_needs_a_model_with_marks_for_it(routed: doors.Server) -> None:
    for path, body in (
        ("/v1/completions", {"prompt": "a", "suffix": "b"}),
        ("/infill", {"input_prefix": "a", "input_suffix": "b"}),
    ):
        answer = ask(routed, path, **body)
        assert answer.status_code == 400
        assert "no marks for filling in the middle" in answer.json()["error"]["message"]


def test_a_template_is_applied_without_an_answer(routed: doors.Server) -> None:
    messages = [{"role": "user", "content": "hello <|im_end|> there"}]
    prompt = ask(routed, "/apply-template", messages=messages).json()["prompt"]
    assert "hello <|im_end|> there" in prompt and prompt.count("<|im_start|>") == 2


def test_earlier_calls_are_written_out_where_the_template_knows_no_tools(
    routed: doors.Server,
) -> None:
    call = {"id": "1", "function": {"name": "add", "arguments": '{"a": 1}'}, "type": "function"}
    messages = [
        {"role": "user", "content": "one more"},
        {"role": "assistant", "content": "Let me see.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "2"},
    ]
    offered = [{"type": "function", "function": {"name": "add"}}]
    prompt = ask(routed, "/apply-template", messages=messages, tools=offered).json()["prompt"]
    written = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    assert f"Let me see.\n{written}" in prompt


def test_the_model_is_found_by_its_name_and_no_other_is(routed: doors.Server) -> None:
    (only,) = httpx.get(f"{routed.url}/v1/models").json()["data"]
    assert httpx.get(f"{routed.url}/v1/models/{only['id']}").json() == only
    missing = httpx.get(f"{routed.url}/v1/models/some/other")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"
    assert only["id"] in missing.json()["error"]["message"]


def test_a_model_that_is_not_there_is_told_and_the_only_one_answers(
    routed: doors.Server,
) -> None:
    (only,) = httpx.get(f"{routed.url}/v1/models").json()["data"]
    for name, n_told in (("gpt-5", 1), (only["id"], 0), ("", 0)):
        answer = ask(routed, "/v1/completions", **BODY, model=name).json()
        told = [one for one in answer.get("warnings", ()) if one["param"] == "model"]
        assert len(told) == n_told
        assert all("'gpt-5'" in one["message"] and only["id"] in one["message"] for one in told)


limited = doors.server_on("model", server__max_answer_tokens=4)


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/v1/completions", BODY, "max_tokens"),
        ("/v1/chat/completions", CHAT, "max_tokens"),
        ("/v1/chat/completions", CHAT | {"max_completion_tokens": 9}, "max_completion_tokens"),
        ("/v1/responses", {"input": "on on", "max_output_tokens": 30}, "max_output_tokens"),
        ("/v1/messages", CHAT, "max_tokens"),
    ],
)
def test_whoever_asks_for_more_than_the_server_answers_with_is_told(
    limited: doors.Server, path: str, body: dict[str, Any], name: str
) -> None:
    answer = httpx.post(f"{limited.url}{path}", json=body).json()
    assert answer["speculation"]["generated"] == 4
    (told,) = answer["warnings"]
    wanted = body[name]
    said = f"{name} is {wanted}; this server answers with 4 tokens at most"
    assert (told["param"], told["message"]) == (name, said)


def test_whoever_asks_for_less_or_says_nothing_is_told_nothing(limited: doors.Server) -> None:
    for body in (BODY | {"max_tokens": 4}, {"prompt": "on on"}):
        assert "warnings" not in httpx.post(f"{limited.url}/v1/completions", json=body).json()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 9}, "n"),
        ({"n": 0}, "n"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"speculation": {"policy": "never heard of"}}, "speculation.policy"),
        ({"chat_template_kwargs": {"messages": 1}}, "chat_template_kwargs"),
    ],
)
def test_errors_name_the_field_they_are_about(
    routed: doors.Server, fields: dict[str, Any], param: str
) -> None:
    error = ask(routed, "/v1/chat/completions", **{**CHAT, **fields}).json()["error"]
    assert error["param"] == param, error


@pytest.mark.parametrize("prompt", [[], [10**6], ["a"] * 200])
def test_an_error_about_the_prompt_names_it(routed: doors.Server, prompt: list[Any]) -> None:
    error = ask(routed, "/v1/completions", prompt=prompt).json()["error"]
    assert error["param"] == "prompt", error
