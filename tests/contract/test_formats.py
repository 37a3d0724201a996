"""The official clients in all three formats: one core, the same text, each one's own shapes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from anthropic import Anthropic
from anthropic import BadRequestError as AnthropicBadRequest
from openai import BadRequestError, NotFoundError, OpenAI

from tests import doors

PROMPT = "hello there"
TURN: Any = {"role": "user", "content": PROMPT}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
CALLED = [
    {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "call_1", "output": "sunny"},
]


@pytest.fixture(scope="module")
def openai(server: doors.Server) -> Iterator[OpenAI]:
    with server.openai() as client:
        yield client


@pytest.fixture(scope="module")
def anthropic(server: doors.Server) -> Iterator[Anthropic]:
    with Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=60) as client:
        yield client


def said(client: Anthropic, **options: Any) -> Any:
    fixed = {"temperature": 0, **options.pop("extra", {})}
    given = {"model": "m", "max_tokens": 24, "messages": [TURN], "extra_body": fixed}
    return client.messages.create(**{**given, **options})


def responded(client: OpenAI, **options: Any) -> Any:
    given = {"model": "m", "max_output_tokens": 24, "input": [TURN], "temperature": 0}
    return client.responses.create(**{**given, **options})


def test_the_same_prompt_gives_the_same_text_in_all_three_formats(
    openai: OpenAI, anthropic: Anthropic
) -> None:
    chat = openai.chat.completions.create(
        model="m", messages=[TURN], max_tokens=24, temperature=0
    ).choices[0]
    message, response = said(anthropic), responded(openai)
    assert message.content[0].text == response.output_text == chat.message.content
    assert message.stop_reason == "max_tokens"
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"
    assert message.usage.output_tokens == response.usage.output_tokens == 24
    for found in (message, response):
        assert found.model_extra["speculation"]["generated"] == 24


def test_streams_say_what_whole_answers_say(openai: OpenAI, anthropic: Anthropic) -> None:
    options: Any = {"model": "m", "max_tokens": 24, "messages": [TURN]}
    with anthropic.messages.stream(**options, extra_body={"temperature": 0}) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == said(anthropic).content[0].text == final.content[0].text  # type: ignore[union-attr]
    assert final.stop_reason == "max_tokens" and final.usage.output_tokens == 24
    events = list(responded(openai, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    last = events[-1].response
    assert "".join(deltas) == text == last.output_text
    assert last.model_extra["speculation"]["generated"] == 24


def test_a_responses_stream_has_its_events_in_order(openai: OpenAI) -> None:
    kinds = [event.type.removeprefix("response.") for event in responded(openai, stream=True)]
    once = [kind for i, kind in enumerate(kinds) if i == 0 or kind != kinds[i - 1]]
    assert once == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "incomplete",
    ]


def test_a_forced_call_comes_back_in_each_format(openai: OpenAI, anthropic: Anthropic) -> None:
    tool: Any = {"name": "weather", "input_schema": SCHEMA}
    choice: Any = {"type": "tool", "name": "weather"}
    message = said(anthropic, tools=[tool], tool_choice=choice, max_tokens=200)
    assert message.stop_reason == "tool_use"
    assert message.content[0].input["city"] in ("Rome", "Oslo")
    function: Any = {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": True}
    options: Any = {"tools": [function], "tool_choice": "required", "max_output_tokens": 200}
    response = responded(openai, **options)
    (call,) = response.output
    assert call.type == "function_call" and call.call_id
    assert json.loads(call.arguments) == message.content[0].input
    streamed = list(responded(openai, **options, stream=True))
    parts = [e.delta for e in streamed if e.type == "response.function_call_arguments.delta"]
    assert "".join(parts) == call.arguments == streamed[-1].response.output[0].arguments


def test_a_streamed_call_is_put_together_by_the_client(anthropic: Anthropic) -> None:
    tool: Any = {"name": "weather", "input_schema": SCHEMA}
    with anthropic.messages.stream(
        model="m",
        max_tokens=200,
        messages=[TURN],
        tools=[tool],
        tool_choice={"type": "any"},
        extra_body={"temperature": 0},
    ) as stream:
        final = stream.get_final_message()
    block = final.content[0]
    assert block.type == "tool_use" and block.input["city"] in ("Rome", "Oslo")
    assert final.stop_reason == "tool_use"


def test_calls_and_results_of_earlier_turns_are_read_alike(
    openai: OpenAI, anthropic: Anthropic
) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    turns: Any = [
        TURN,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    chat = openai.chat.completions.create(model="m", messages=turns, max_tokens=8, temperature=0)
    input_: Any = [TURN, *CALLED]
    response = responded(openai, input=input_, max_output_tokens=8)
    blocks: Any = [
        TURN,
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "call_1", "name": "weather", "input": {}}],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "call_1",
                    "content": "sunny",
                    "cache_control": {"type": "ephemeral"},
                }
            ],
        },
    ]
    message = said(anthropic, messages=blocks, max_tokens=8)
    assert chat.usage is not None
    counted = message.usage.input_tokens + message.usage.cache_read_input_tokens
    assert chat.usage.prompt_tokens == response.usage.input_tokens == counted
    assert chat.choices[0].message.content == response.output_text == message.content[0].text


def test_structured_output_in_each_format(openai: OpenAI, anthropic: Anthropic) -> None:
    form: Any = {"format": {"type": "json_schema", "schema": SCHEMA}}
    message = said(anthropic, extra={"output_config": form}, max_tokens=200)
    form["format"]["name"] = "place"
    response = responded(openai, text=form, max_output_tokens=200)
    assert json.loads(message.content[0].text) == json.loads(response.output_text)


def test_a_stop_sequence_is_named(anthropic: Anthropic) -> None:
    whole = said(anthropic).content[0].text
    stop = whole[10:13]
    message = said(anthropic, stop_sequences=[stop])
    assert message.content[0].text == whole[: whole.index(stop)]
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)


def test_tokens_are_counted_as_they_will_be_read(anthropic: Anthropic) -> None:
    options: Any = {"messages": [TURN], "system": "Be brief.", "model": "m"}
    counted = anthropic.messages.count_tokens(**options).input_tokens
    usage = said(anthropic, system="Be brief.").usage
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0)


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_errors_have_anthropics_shape(server: doors.Server, path: str) -> None:
    answer = httpx.post(f"{server.url}{path}", json={"max_tokens": 3})
    assert answer.status_code == 400
    assert answer.json()["type"] == "error"
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert "messages" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("kind", "named"), [("image", "a picture"), ("input_audio", "a sound"), ("file", "a file")]
)
def test_what_is_no_text_is_refused_by_name(
    openai: OpenAI, anthropic: Anthropic, kind: str, named: str
) -> None:
    content: Any = [{"type": kind, "source": {}}]
    with pytest.raises(AnthropicBadRequest, match=f"{named} cannot be read"):
        said(anthropic, messages=[{"role": "user", "content": content}])
    with pytest.raises(BadRequestError, match=f"{named} cannot be read"):
        responded(openai, input=[{"role": "user", "content": content}])
    with pytest.raises(BadRequestError, match=f"{named} cannot be read"):
        turn: Any = {"role": "user", "content": content}
        openai.chat.completions.create(model="m", messages=[turn])


def test_tools_that_run_elsewhere_are_left_out_and_told(openai: OpenAI) -> None:
    search: Any = {"type": "web_search"}
    response = responded(openai, tools=[search], extra_body={"moods": 1})
    told = {one["param"]: one["message"] for one in response.model_extra["warnings"]}
    assert "web_search" in told["tools"] and "moods" in told["moods"]


def test_a_response_cannot_go_on_from_one_that_was_not_kept(openai: OpenAI) -> None:
    with pytest.raises(BadRequestError, match=r"server\.stored_responses"):
        responded(openai, previous_response_id="resp_1")


remembering = doors.server_on("model", server__stored_responses=2, server__api_keys=("one", "two"))


def test_a_response_goes_on_from_an_earlier_one_of_the_same_key(remembering: doors.Server) -> None:
    with remembering.as_key("one").openai() as one, remembering.as_key("two").openai() as two:
        first = responded(one)
        assert first.model_extra["store"] is True
        second = responded(one, input="more", previous_response_id=first.id)
        told: Any = [TURN, {"role": "assistant", "content": first.output_text}]
        whole = responded(one, input=[*told, {"role": "user", "content": "more"}], store=False)
        assert second.usage.input_tokens == whole.usage.input_tokens
        assert second.output_text == whole.output_text
        with pytest.raises(BadRequestError, match="is not known here"):
            responded(two, previous_response_id=first.id)
        with pytest.raises(BadRequestError, match="is not known here"):
            responded(one, previous_response_id=whole.id)
        responded(two)
        with pytest.raises(BadRequestError, match="is not known here"):  # two are kept, no more
            responded(one, previous_response_id=first.id)


def test_a_response_that_was_kept_can_be_read_again_and_forgotten(
    remembering: doors.Server,
) -> None:
    with remembering.as_key("one").openai() as one, remembering.as_key("two").openai() as two:
        made = responded(one)
        assert one.responses.retrieve(made.id).to_dict() == made.to_dict()
        with pytest.raises(NotFoundError, match="is not known here"):
            two.responses.retrieve(made.id)
        with pytest.raises(NotFoundError):
            two.responses.delete(made.id)
        one.responses.delete(made.id)
        for again in (one.responses.retrieve, one.responses.delete):
            with pytest.raises(NotFoundError, match="is not known here"):
                again(made.id)


def test_a_streamed_response_is_kept_as_its_last_event_told_it(remembering: doors.Server) -> None:
    with remembering.as_key("one").openai() as one:
        *_, last = responded(one, stream=True)
        assert one.responses.retrieve(last.response.id).to_dict() == last.response.to_dict()


def test_where_nothing_is_kept_reading_says_how_to_keep(openai: OpenAI) -> None:
    with pytest.raises(NotFoundError, match=r"server\.stored_responses"):
        openai.responses.retrieve("resp_1")


strict = doors.server_on("model", server__unknown_fields="refuse", server__api_keys=("secret",))


def test_unknown_fields_can_be_refused_in_every_format(strict: doors.Server) -> None:
    with strict.as_key("secret").openai() as client:
        with pytest.raises(BadRequestError, match="temprature; did you mean temperature"):
            client.chat.completions.create(model="", messages=[TURN], extra_body={"temprature": 1})
        with pytest.raises(BadRequestError, match="unknown field moods"):
            responded(client, extra_body={"moods": 1})
    with (
        Anthropic(base_url=strict.url, api_key="secret", max_retries=0) as anthropic,
        pytest.raises(AnthropicBadRequest, match="unknown field moods"),
    ):
        said(anthropic, extra={"moods": 1})


def test_a_wrong_key_is_told_in_anthropics_shape(strict: doors.Server) -> None:
    answer = httpx.post(f"{strict.url}/v1/messages", json={}, headers={"x-api-key": "wrong"})
    assert answer.status_code == 401
    assert answer.json()["error"]["type"] == "authentication_error"
