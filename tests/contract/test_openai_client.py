"""The official client against a started server: sync, async, streaming, tools, structure."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from openai import APIStatusError, AsyncOpenAI, BadRequestError, OpenAI
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from openai.types.chat.chat_completion_chunk import ChoiceDeltaToolCall
from pydantic import BaseModel

from tests import doors

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hello there"}]
WEATHER: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Rome", "Oslo"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def client(server: doors.Server) -> Iterator[OpenAI]:
    with server.openai() as found:
        yield found


def test_a_chat_completion_tells_text_usage_and_speculation(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="local-model", messages=HELLO, max_tokens=32, temperature=0
    )
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None and answer.usage.completion_tokens == 32
    extra = answer.model_extra or {}
    spec = extra["speculation"]
    assert spec["drafted"] > 0 and spec["rounds"] < 32
    assert spec["exact"] is True and spec["mode"] == "exact"
    assert spec["generated"] == 32
    assert spec["acceptance_length"] == pytest.approx(32 / spec["rounds"], abs=1e-3)
    assert spec["speedup"] > 0 and spec["e2e_ms"] >= spec["ttft_ms"] > 0
    assert extra["timings"]["draft_n"] == spec["drafted"]
    assert extra["timings"]["predicted_n"] == 32


def test_streamed_text_equals_whole_text_and_the_last_chunk_tells_the_numbers(
    client: OpenAI,
) -> None:
    whole = client.chat.completions.create(model="", messages=HELLO, max_tokens=32, temperature=0)
    chunks = list(
        client.chat.completions.create(
            model="", messages=HELLO, max_tokens=32, temperature=0, stream=True
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks)
    assert text == whole.choices[0].message.content
    assert len(chunks) < 32  # one event a round, not one a token
    assert chunks[-1].choices[0].finish_reason == "length"
    assert (chunks[-1].model_extra or {})["speculation"]["generated"] == 32
    assert all(chunk.usage is None for chunk in chunks)


def test_usage_comes_last_when_it_is_asked_for(client: OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model="",
            messages=HELLO,
            max_tokens=8,
            temperature=0,  # a sampled answer may end by itself
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 8
    assert (chunks[-1].model_extra or {})["timings"]["predicted_n"] == 8


def test_the_async_client_streams_several_answers_at_once(server: doors.Server) -> None:
    async def one(client: AsyncOpenAI, seed: int) -> str:
        stream = await client.chat.completions.create(
            model="", messages=HELLO, max_tokens=16, seed=seed, stream=True
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def all_of_them() -> list[str]:
        url = f"{server.url}/v1"
        async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(one(client, seed) for seed in (1, 1, 2)))

    first, again, other = asyncio.run(all_of_them())
    assert first == again != other


def test_the_same_seed_gives_the_same_text_with_and_without_speculation(client: OpenAI) -> None:
    def text(speculation: object) -> str:
        answer = client.chat.completions.create(
            model="",
            messages=HELLO,
            max_tokens=48,
            temperature=0.9,
            top_p=0.95,
            presence_penalty=0.5,
            seed=7,
            extra_body={"speculation": speculation, "top_k": 50, "min_p": 0.01},
        )
        return answer.choices[0].message.content or ""

    plain = text(False)
    assert plain == text(True) == text({"draft": "model", "window": 2}) == text({"window": 7})


def test_speculation_is_controlled_per_request(client: OpenAI) -> None:
    def numbers(speculation: object) -> dict[str, Any]:
        answer = client.chat.completions.create(
            model="",
            messages=HELLO,
            max_tokens=24,
            temperature=0,
            extra_body={"speculation": speculation},
        )
        found: dict[str, Any] = (answer.model_extra or {})["speculation"]
        return found

    off = numbers(False)
    assert off["drafted"] == 0 and set(off["fallbacks"]) == {"request"}
    two = numbers({"draft": "model", "window": 2})
    assert two["proposers"] and set(two["windows"]) <= {"0", "1", "2"}
    named = numbers({"policy": "prompt_heavy"})
    assert set(named["fallbacks"]) == {"prompt_heavy"} and named["policy"] == "prompt_heavy"
    with pytest.raises(BadRequestError, match="bold"):
        numbers({"policy": "bold"})
    with pytest.raises(BadRequestError, match="no proposer 'magic'"):
        numbers({"draft": "magic"})


def test_n_answers_have_seeds_of_their_own(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="", messages=HELLO, max_tokens=12, n=3, seed=3)
    texts = [choice.message.content for choice in answer.choices]
    assert len(set(texts)) == 3
    second = client.chat.completions.create(model="", messages=HELLO, max_tokens=12, seed=4)
    assert second.choices[0].message.content == texts[1]
    chunks = client.chat.completions.create(
        model="", messages=HELLO, max_tokens=12, n=2, seed=3, stream=True
    )
    streamed = ["", ""]
    for chunk in chunks:
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts[:2]


def test_stop_strings_end_the_text_before_them(client: OpenAI) -> None:
    whole = client.completions.create(model="", prompt="hello", max_tokens=40, temperature=0)
    text = whole.choices[0].text
    stop = text[12:14]
    cut = client.completions.create(
        model="", prompt="hello", max_tokens=40, temperature=0, stop=[stop]
    )
    assert cut.choices[0].text == text[: text.index(stop)]
    assert cut.choices[0].finish_reason == "stop"


def test_logit_bias_forbids_a_token(client: OpenAI, server: doors.Server) -> None:
    (a,) = server.tokens("a")
    grammar = {"grammar": 'root ::= "a" | "b"'}
    asked: Any = {"model": "", "prompt": "hello", "max_tokens": 1, "temperature": 0}
    for banned, said in ((a, "b"), (server.tokens("b")[0], "a")):
        found = client.completions.create(
            **asked, logit_bias={str(banned): -100}, extra_body=grammar
        )
        assert found.choices[0].text == said


def test_logprobs_are_the_same_with_and_without_speculation(client: OpenAI) -> None:
    def figures(speculation: bool) -> list[tuple[float, tuple[float, ...]]]:
        answer = client.chat.completions.create(
            model="",
            messages=HELLO,
            max_tokens=24,
            temperature=0,
            logprobs=True,
            top_logprobs=3,
            extra_body={"speculation": speculation},
        )
        content = answer.choices[0].logprobs
        assert content is not None and content.content is not None
        return [(t.logprob, tuple(x.logprob for x in t.top_logprobs)) for t in content.content]

    fast, plain = figures(True), figures(False)
    assert len(fast) == 24 and fast == plain
    assert all(own == top[0] and list(top) == sorted(top, reverse=True) for own, top in fast)


class Person(BaseModel):
    name: Literal["Ann", "Bob"]
    age: Literal[20, 30]


def test_structured_output_parses_into_a_model(client: OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="",
        messages=HELLO,
        response_format=Person,
        max_tokens=200,
        temperature=0,
    )
    assert isinstance(answer.choices[0].message.parsed, Person)


@pytest.mark.parametrize("speculation", [True, False])
def test_json_mode_gives_json(client: OpenAI, speculation: bool) -> None:
    answer = client.chat.completions.create(
        model="",
        messages=HELLO,
        response_format={
            "type": "json_schema",
            "json_schema": {
                "name": "x",
                "schema": {
                    "type": "object",
                    "properties": {"ok": {"type": "boolean"}, "n": {"enum": [1, 22, 333]}},
                    "required": ["ok", "n"],
                    "additionalProperties": False,
                },
            },
        },
        max_tokens=200,
        temperature=0,
        extra_body={"speculation": speculation},
    )
    assert answer.choices[0].finish_reason == "stop"
    found = json.loads(answer.choices[0].message.content or "")
    assert set(found) == {"ok", "n"} and found["n"] in (1, 22, 333)


def test_a_grammar_leaves_speculation_exact(client: OpenAI) -> None:
    """Rows of a draft are masked one by one: the text is the plain one's."""
    grammar = 'root ::= ("he" | "on" | "and" | " the" | "er")+'

    def answer(speculation: bool, seed: int) -> tuple[str, int]:
        found = client.completions.create(
            model="",
            prompt="hello",
            max_tokens=40,
            temperature=0.8,
            seed=seed,
            extra_body={"grammar": grammar, "speculation": speculation},
        )
        return found.choices[0].text, (found.model_extra or {})["speculation"]["accepted"]

    n_accepted = 0
    for seed in range(4):
        plain, fast = answer(False, seed), answer(True, seed)
        assert plain[0] == fast[0] and plain[1] == 0
        n_accepted += fast[1]
    assert n_accepted > 0


def test_a_forced_tool_call_comes_back_as_a_call(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="",
        messages=[{"role": "user", "content": "weather in Oslo?"}],
        tools=[WEATHER],
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
        max_tokens=200,
        temperature=0,
    )
    assert answer.choices[0].finish_reason == "tool_calls"
    calls = answer.choices[0].message.tool_calls
    assert calls is not None and calls[0].type == "function"
    assert calls[0].function.name == "get_weather"
    assert json.loads(calls[0].function.arguments)["city"] in ("Rome", "Oslo")


def test_a_streamed_tool_call_is_named_first_and_its_arguments_flow(client: OpenAI) -> None:
    chunks = client.chat.completions.create(
        model="",
        messages=[{"role": "user", "content": "weather in Oslo?"}],
        tools=[WEATHER],
        tool_choice="required",
        max_tokens=200,
        temperature=0,
        stream=True,
    )
    calls: list[ChoiceDeltaToolCall] = []
    reason = None
    for chunk in chunks:
        calls += chunk.choices[0].delta.tool_calls or []
        reason = chunk.choices[0].finish_reason or reason
    assert reason == "tool_calls" and len(calls) > 1
    functions = [call.function for call in calls if call.function is not None]
    assert [function.name for function in functions if function.name] == ["get_weather"]
    assert functions[0].name == "get_weather" and calls[0].id
    arguments = json.loads("".join(function.arguments or "" for function in functions))
    assert arguments["city"] in ("Rome", "Oslo")


def test_a_conversation_with_tool_results_is_rendered(client: OpenAI) -> None:
    messages: list[ChatCompletionMessageParam] = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "weather?"}]},
        {
            "role": "assistant",
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    answer = client.chat.completions.create(model="", messages=messages, max_tokens=4)
    assert answer.usage is not None and answer.usage.prompt_tokens > 20


def test_thinking_is_split_from_the_answer(client: OpenAI) -> None:
    grammar = 'root ::= "<think>" "on and on" "</think>" "hello"'

    def ask(**more: Any) -> Any:
        body = {"grammar": grammar, **more.pop("extra", {})}
        return client.chat.completions.create(
            model="", messages=HELLO, max_tokens=200, temperature=0, extra_body=body, **more
        )

    message = ask().choices[0].message
    assert message.content == "hello"
    assert message.model_extra["reasoning_content"] == "on and on"
    thought, said = "", ""
    for chunk in ask(stream=True):
        delta = chunk.choices[0].delta
        thought += (delta.model_extra or {}).get("reasoning_content", "")
        said += delta.content or ""
    assert (thought, said) == ("on and on", "hello")
    whole = ask(extra={"reasoning_format": "none"}).choices[0].message.content
    assert whole == "<think>on and on</think>hello"


@pytest.mark.parametrize(
    "written",
    [
        '"<tool_call>{\\"name\\": \\"get_weather\\", \\"arguments\\": {}}</tool_call>"',
        '"{\\"name\\": \\"get_weather\\", \\"parameters\\": {}}"',
    ],
)
def test_a_call_the_model_writes_by_itself_is_parsed(client: OpenAI, written: str) -> None:
    answer = client.chat.completions.create(
        model="",
        messages=HELLO,
        tools=[WEATHER],
        max_tokens=200,
        temperature=0,
        extra_body={"grammar": f"root ::= {written}"},
    )
    assert answer.choices[0].finish_reason == "tool_calls"
    calls = answer.choices[0].message.tool_calls
    assert calls is not None and calls[0].type == "function"
    assert (calls[0].function.name, calls[0].function.arguments) == ("get_weather", "{}")


def test_models_are_listed(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["served"]


def test_embeddings_are_refused_clearly(client: OpenAI) -> None:
    with pytest.raises(APIStatusError, match="computes no embeddings") as caught:
        client.embeddings.create(model="", input="x")
    assert caught.value.status_code == 501


def test_an_answer_that_nothing_was_drafted_for_has_no_speedup(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="", messages=HELLO, max_tokens=8, extra_body={"speculation": False}
    )
    told = (answer.model_extra or {})["speculation"]
    assert told["drafted"] == 0 and told["speedup"] is None


def test_tools_beside_a_form_of_the_whole_answer_are_told_of(client: OpenAI) -> None:
    forms: dict[str, Any] = {"response_format": {"type": "json_object"}}
    answer = client.chat.completions.create(
        model="", messages=HELLO, max_tokens=8, tools=[WEATHER], extra_body=forms
    )
    (told,) = (answer.model_extra or {})["warnings"]
    assert told["param"] == "tools" and "send one of the two" in told["message"]
    for alone in ({"tools": [WEATHER]}, {"extra_body": forms}):
        answer = client.chat.completions.create(model="", messages=HELLO, max_tokens=8, **alone)
        assert "warnings" not in (answer.model_extra or {})


def test_unknown_fields_are_told_and_bad_values_refused(client: OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="", messages=HELLO, max_tokens=1, extra_body={"temprature": 1}
    )
    assert raw.headers["X-Parlay-Warnings"] == "temprature"
    (told,) = (raw.parse().model_extra or {})["warnings"]
    assert "did you mean temperature" in told["message"]
    with pytest.raises(BadRequestError, match="mirostat would change the text"):
        client.chat.completions.create(
            model="", messages=HELLO, max_tokens=1, extra_body={"mirostat": 2}
        )
    with pytest.raises(BadRequestError, match="top_p"):
        client.chat.completions.create(model="", messages=HELLO, max_tokens=1, top_p=7)
    with pytest.raises(BadRequestError, match="grammar cannot be read"):
        client.chat.completions.create(
            model="", messages=HELLO, max_tokens=1, extra_body={"grammar": "root = x"}
        )


def test_an_oversize_prompt_is_refused_with_its_size(client: OpenAI) -> None:
    with pytest.raises(BadRequestError, match="prompt has") as caught:
        client.completions.create(model="", prompt="q" * 2000, max_tokens=1)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")
    with pytest.raises(BadRequestError, match="prompt has") as caught:
        turn: ChatCompletionMessageParam = {"role": "user", "content": "q" * 2000}
        client.chat.completions.create(model="", messages=[turn], max_tokens=1)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")
