"""Tool calls parsed back from the common formats, however the text arrives."""

from __future__ import annotations

import json

import pytest

from parlay.server.api.tools import Call, ToolText

HERMES = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


def parse(text: str, size: int) -> tuple[str, list[Call]]:
    tools = ToolText(("add", "now"))
    content = ""
    calls: list[Call] = []
    for said in [
        *(tools.push(text[i : i + size]) for i in range(0, len(text), size)),
        tools.finish(),
    ]:
        content += said.content
        calls += said.calls
    return content, calls


@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (HERMES, "", [("add", {"a": 1})]),
        ("Let me see.\n" + HERMES, "Let me see.", [("add", {"a": 1})]),
        (HERMES + "\n" + HERMES.replace("add", "now"), "", [("add", {"a": 1}), ("now", {"a": 1})]),
        ('{"name": "add", "parameters": {"a": 2}}', "", [("add", {"a": 2})]),
        ('[{"name": "add", "parameters": {"a": 2}}]', "", [("add", {"a": 2})]),
        ('<|python_tag|>{"name": "now", "parameters": {}}', "", [("now", {})]),
        (
            '{"name": "add", "parameters": {}}; {"name": "now", "parameters": {}}',
            "",
            [("add", {}), ("now", {})],
        ),
        ('{"name": "add", "parameters": {"a": "x; y"}}', "", [("add", {"a": "x; y"})]),
        ('{"name": "other", "parameters": {}}', '{"name": "other", "parameters": {}}', []),
        ('{"plain": "json"}', '{"plain": "json"}', []),
        ("Just text, a < b.", "Just text, a < b.", []),
        ("<tool_call>\n{broken", "<tool_call>\n{broken", []),
        ("<tool_call>{broken}</tool_call>", "<tool_call>{broken}</tool_call>", []),
        ("", "", []),
    ],
)
def test_calls_and_content_are_told_apart(
    text: str, content: str, calls: list[tuple[str, dict[str, int]]], size: int
) -> None:
    said, found = parse(text, size)
    assert said.strip() == content
    assert [(call.name, json.loads(call.arguments)) for call in found] == calls
    assert len({call.id for call in found}) == len(found)
