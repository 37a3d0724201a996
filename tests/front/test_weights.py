"""On real weights: the homelab body by curl, concurrent exactness, tools, structure."""

from __future__ import annotations

import json
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from anthropic import Anthropic

from tests.front.running import Running, server_on

pytestmark = pytest.mark.weights

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}
PROMPTS = [
    "Count from one to ten, then do it again.",
    "Write a haiku about rain.",
    "What is the capital of France?",
    "List three colours.",
]


smol = server_on("smollm2", runtime__slots=2, runtime__threads=2, runtime__speculative_window=3)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_homelab_script_body_works_with_curl(smol: Running) -> None:
    body = {
        "model": "local-model",
        "messages": [{"role": "user", "content": "Say hello."}],
        "max_tokens": 16,
        "speculation": True,
    }
    command = ["curl", "-s", f"{smol.url}/v1/chat/completions"]
    command += ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    assert answer["choices"][0]["message"]["content"].strip()
    assert answer["timings"]["predicted_n"] <= 16
    assert answer["speculation"]["rounds"] >= 1


def test_concurrent_answers_equal_sequential_plain_ones(smol: Running) -> None:
    client = smol.client()

    def answer(prompt: str, speculation: bool) -> tuple[str | None, dict[str, Any]]:
        found = client.chat.completions.create(
            model="",
            messages=[{"role": "user", "content": prompt}],
            max_tokens=16,
            temperature=0,
            extra_body={"speculation": speculation},
        )
        return found.choices[0].message.content, (found.model_extra or {})["speculation"]

    plain = [answer(prompt, False)[0] for prompt in PROMPTS]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda prompt: answer(prompt, True), PROMPTS))
    for expected, (text, numbers) in zip(plain, together, strict=True):
        assert text == expected or not numbers["exact"]
    if smol.figures()["exact"]["concurrent"]:
        assert all(numbers["exact"] for _, numbers in together)


def test_structured_output_and_tools_on_a_template_without_tools(smol: Running) -> None:
    client = smol.client()
    answer = client.chat.completions.create(
        model="",
        messages=[{"role": "user", "content": "What is the weather in Oslo?"}],
        tools=[
            {
                "type": "function",
                "function": {
                    "name": "get_weather",
                    "parameters": {
                        "type": "object",
                        "properties": {"city": {"type": "string", "maxLength": 20}},
                        "required": ["city"],
                        "additionalProperties": False,
                    },
                },
            }
        ],
        tool_choice="required",
        max_tokens=60,
        temperature=0,
    )
    calls = answer.choices[0].message.tool_calls
    assert calls is not None and calls[0].type == "function"
    assert "city" in json.loads(calls[0].function.arguments)


def test_the_official_clients_get_one_text_in_three_formats(smol: Running) -> None:
    turn: Any = {"role": "user", "content": "Write a haiku about rain."}
    tool: Any = {"name": "get_weather", "input_schema": WEATHER}
    with smol.client() as openai, Anthropic(base_url=smol.url, api_key="none") as anthropic:
        chat = openai.chat.completions.create(
            model="", messages=[turn], max_tokens=24, temperature=0
        )
        response = openai.responses.create(
            model="", input=[turn], max_output_tokens=24, temperature=0
        )
        options: Any = {"model": "m", "messages": [turn], "extra_body": {"temperature": 0}}
        with anthropic.messages.stream(max_tokens=24, **options) as stream:
            text = "".join(stream.text_stream)
        assert text == response.output_text == chat.choices[0].message.content != ""
        called = anthropic.messages.create(
            max_tokens=60, tools=[tool], tool_choice={"type": "any"}, **options
        )
        (block,) = called.content
        assert block.type == "tool_use" and set(block.input) == {"city"}
        form: Any = {"format": {"type": "json_schema", "name": "place", "schema": WEATHER}}
        shaped = openai.responses.create(model="", input=[turn], text=form, temperature=0)
        assert set(json.loads(shaped.output_text)) == {"city"}
