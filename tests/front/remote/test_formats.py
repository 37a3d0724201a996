"""The other doors before a remote server: translated to its chat completions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from anthropic import Anthropic
from openai import OpenAI

from tests.front.remote.fakes import WORDS, Engine, engines
from tests.front.remote.running import Running, gateway
from tests.front.running import Running as Server
from tests.serving import PATIENCE_S

TURN: Any = {"role": "user", "content": "hello there"}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def relayed(server: Server) -> Iterator[Running]:
    """A front over a real server: every door is translated to the one that all servers have."""
    with gateway({"name": "all", "urls": [server.url]}) as found:
        yield found


@pytest.fixture(scope="module")
def anthropic(relayed: Running) -> Iterator[Anthropic]:
    with Anthropic(
        base_url=relayed.url, api_key="none", max_retries=0, timeout=PATIENCE_S
    ) as client:
        yield client


@pytest.fixture(scope="module")
def openai(relayed: Running) -> Iterator[OpenAI]:
    with relayed.client() as client:
        yield client


def expected(server: Server) -> str:
    body = {"messages": [TURN], "max_tokens": 24, "temperature": 0}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body).json()
    return str(answer["choices"][0]["message"]["content"])


def test_messages_say_what_the_engine_said(server: Server, anthropic: Anthropic) -> None:
    text = expected(server)
    options: Any = {"model": "mine", "max_tokens": 24, "messages": [TURN]}
    whole = anthropic.messages.create(**options, extra_body={"temperature": 0})
    assert whole.content[0].text == text
    assert whole.stop_reason == "max_tokens" and whole.usage.output_tokens == 24
    assert (whole.model_extra or {})["speculation"]["pool"] == "all"
    with anthropic.messages.stream(**options, extra_body={"temperature": 0}) as stream:
        assert "".join(stream.text_stream) == text
        assert stream.get_final_message().usage.output_tokens == 24


def test_responses_say_what_the_engine_said(server: Server, openai: OpenAI) -> None:
    text = expected(server)
    options: Any = {"model": "mine", "max_output_tokens": 24, "input": [TURN], "temperature": 0}
    whole = openai.responses.create(**options)
    assert whole.output_text == text and whole.status == "incomplete"
    events = list(openai.responses.create(**options, stream=True))
    assert events[-1].response.output_text == text
    assert events[-1].response.usage.output_tokens == 24
    assert events[-1].response.model_extra["speculation"]["pool"] == "all"


def test_calls_come_through(anthropic: Anthropic, openai: OpenAI) -> None:
    tool: Any = {"name": "weather", "input_schema": SCHEMA}
    options: Any = {"model": "m", "max_tokens": 200, "messages": [TURN], "tools": [tool]}
    greedy = {"temperature": 0}
    message = anthropic.messages.create(**options, tool_choice={"type": "any"}, extra_body=greedy)
    assert message.stop_reason == "tool_use"
    function: Any = {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": True}
    stream = openai.responses.create(
        model="m",
        input=[TURN],
        tools=[function],
        tool_choice="required",
        temperature=0,
        stream=True,
    )
    last: Any = list(stream)[-1]
    (call,) = last.response.output
    assert json.loads(call.arguments)["city"] in ("Rome", "Oslo")


def test_requests_are_counted_by_their_format(relayed: Running, anthropic: Anthropic) -> None:
    anthropic.messages.create(model="m", max_tokens=2, messages=[TURN])
    page = httpx.get(f"{relayed.url}/metrics").text
    assert 'endpoint="messages",status="200"' in page


def test_errors_keep_the_formats_shape(relayed: Running) -> None:
    answer = httpx.post(f"{relayed.url}/v1/messages", json={"max_tokens": 2})
    assert answer.status_code == 400 and answer.json()["type"] == "error"
    answer = httpx.post(f"{relayed.url}/v1/responses", json={"input": []})
    assert answer.status_code == 400 and "input" in answer.json()["error"]["message"]


def test_an_engine_that_breaks_is_told_in_the_formats_own_way() -> None:
    with engines(Engine("m")) as (engine,), gateway({"name": "all", "urls": [engine.url]}) as found:
        body = {"model": "m", "max_tokens": 16, "messages": [TURN]}
        whole = httpx.post(f"{found.url}/v1/messages", json=body).json()
        assert whole["content"][0]["text"] == "".join(WORDS)
        engine.mode = "http_500"
        answer = httpx.post(f"{found.url}/v1/messages", json=body)
        assert answer.status_code == 502 and answer.json()["error"]["type"] == "api_error"
