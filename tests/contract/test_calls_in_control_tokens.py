"""Forms whose marks are control tokens, end to end: forced, read, and not shown as text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter, TokenType
from openai import OpenAI

from tests import doors, tiny_models
from tests.chat.test_style import CALLS, template

MARKS = {
    "mistral": ("[TOOL_CALLS]", "[ARGS]"),
    "kimi": (
        "<|tool_calls_section_begin|>",
        "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        "<|tool_calls_section_end|>",
    ),
    "harmony": ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>"),
    "hermes": ("<tool_call>", "</tool_call>"),
}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
TURN: Any = {"role": "user", "content": "hello there"}


@dataclass(frozen=True)
class MarkedVocabulary(tiny_models.Vocabulary):
    """With control tokens for a form's marks, and a template that writes them."""

    form: str = "mistral"

    @property
    def tokens(self) -> list[str]:
        return [*super().tokens, *MARKS[self.form]]

    @property
    def types(self) -> list[int]:
        n = len(MARKS[self.form])
        return [*super().types[: -n or None], *[int(TokenType.CONTROL)] * n]

    def write(self, writer: GGUFWriter) -> None:
        super().write(writer)
        end = "<|start|>assistant" if self.form == "harmony" else "<|im_start|>"
        writer.kv_data[0].pop("tokenizer.chat_template", None)
        writer.add_chat_template(template(CALLS[self.form], end=end))


@pytest.fixture(scope="module", params=MARKS)
def client(request: pytest.FixtureRequest, tiny_folder: Path) -> Iterator[OpenAI]:
    vocab = MarkedVocabulary(form=request.param)
    path = tiny_models.write_llama(tiny_folder / f"marks-{request.param}.gguf", vocab=vocab)
    with doors.server(path) as server, server.openai() as found:
        yield found


def held_call(client: OpenAI, **asked: Any) -> Any:
    """The only choice of an answer that has to call the tool."""
    (choice,) = client.chat.completions.create(
        model="",
        messages=[TURN],
        tools=[TOOL],
        tool_choice="required",
        max_tokens=100,
        **asked,
    ).choices
    return choice


def test_a_forced_call_goes_through_control_tokens(client: OpenAI) -> None:
    choice = held_call(client, temperature=0)
    assert choice.finish_reason == "tool_calls" and not choice.message.content
    calls: Any = choice.message.tool_calls
    assert [json.loads(call.function.arguments)["city"] in ("Rome", "Oslo") for call in calls] == [
        True
    ]


def test_drafts_do_not_change_a_held_call(client: OpenAI) -> None:
    def arguments(speculation: bool) -> list[str]:
        bets = {"speculation": speculation}
        choice = held_call(client, temperature=0.8, seed=4, extra_body=bets)
        calls: Any = choice.message.tool_calls or ()
        return [call.function.arguments for call in calls]

    assert arguments(True) == arguments(False) != []
