"""What is wrong with a body is said by name, in words that help."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from parlay.errors import PromptTooLong
from parlay.front import bodies
from parlay.front import errors as failures
from parlay.front.schema import ChatRequest

HELLO = {"messages": [{"role": "user", "content": "hello"}]}


def refused(**fields: Any) -> failures.Failure:
    with pytest.raises(ValidationError) as found:
        ChatRequest.model_validate({**HELLO, **fields})
    problems = [{**each, "loc": ("body", *each["loc"])} for each in found.value.errors()]
    return failures.of_validation(problems, sorted(ChatRequest.model_fields))


@pytest.mark.parametrize(
    ("fields", "message", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice asks for a call, but tools is empty", None),
        ({"top_logprobs": 2}, "top_logprobs needs logprobs: true", None),
        (
            {"speculation": {"window": -4}},
            "speculation.window: Input should be greater than or equal to 0",
            "speculation.window",
        ),
    ],
)
def test_fields_that_do_not_fit_are_named_and_the_body_is_not_called_malformed(
    fields: dict[str, Any], message: str, param: str | None
) -> None:
    failure = refused(**fields)
    assert (failure.message, failure.param, failure.code) == (message, param, None)


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("/v1/chat/completions", "messages"),
        ("/v1/completions", "prompt"),
        ("/v1/responses", "input"),
        ("/infill", "input_prefix"),
    ],
)
def test_a_prompt_that_is_too_long_is_called_as_its_route_calls_it(path: str, param: str) -> None:
    failure = failures.of(PromptTooLong("the prompt has 9 tokens"), path)
    assert (failure.code, failure.param) == ("context_length_exceeded", param)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"seed": ' + b"9" * 5000 + b"}", "Integer value out of range"),
        (b'{"a": ' + b"[" * 5000 + b"]" * 5000 + b"}", "nested too deeply"),
    ],
)
def test_bodies_python_cannot_read_are_refused_in_our_own_words(body: bytes, message: str) -> None:
    with pytest.raises(failures.Failure, match=message) as refused:
        bodies.parsed(body, ChatRequest)
    assert refused.value.status == 400


@pytest.mark.parametrize("name", sorted(set(ChatRequest.model_fields) - {"messages"}))
def test_null_is_what_a_client_writes_that_sets_nothing(name: str) -> None:
    assert ChatRequest.model_validate({**HELLO, name: None}) == ChatRequest.model_validate(HELLO)
