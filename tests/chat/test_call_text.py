# ruff: noqa: E501, RUF001 - recorded answers, as they were written
"""Tool calls read back from every form, good and broken, however the text arrives."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.ask import CallForm, ToolFunction
from parlay.chat.call_text import CallText
from parlay.chat.deltas import CallArguments, CallBegin, Delta, Said, Text
from parlay.chat.forms import FALLBACK, FORMATS, marks_of
from parlay.chat.harmony import HarmonyText

FUNCTIONS = (
    ToolFunction("add", {"properties": {"a": {"type": "integer"}, "note": {"type": "string"}}}),
    ToolFunction("now"),
)
INVOKE = CallForm(
    name="invoke", kind="tagged", open='<invoke name="', middle='">', close="</invoke>",
    begin="<minimax:tool_call>", end="</minimax:tool_call>",
    key_open='<parameter name="', key_close='">', value_close="</parameter>", typed=True,
)  # fmt: skip
FORMS = (*FORMATS, INVOKE)
BY_NAME = {form.name: form for form in FORMS}
HERMES = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
ADD: list[tuple[str, Any]] = [("add", {"a": 1})]
BOTH = [*ADD, ("now", {})]


def reader(form: CallForm) -> CallText | HarmonyText:
    return HarmonyText(FUNCTIONS) if form.kind == "channels" else CallText(form, FUNCTIONS)


def read(form: CallForm, pieces: list[str]) -> tuple[str, list[tuple[str, str]], str]:
    """Content, calls with their arguments as text, and thinking."""
    text, said = reader(form), Said()
    deltas: list[Delta] = [delta for piece in pieces for delta in text.push(piece)]
    said.add([*deltas, *text.finish()])
    calls = [call["function"] for call in said.message().get("tool_calls", ())]
    found = [(call["name"], call["arguments"]) for call in calls]
    return "".join(said.text), found, "".join(said.thought)


def cut(text: str, size: int) -> list[str]:
    return [text[i : i + size] for i in range(0, len(text), size)]


@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize(
    ("form", "text", "content", "calls"),
    [
        ("hermes", HERMES, "", ADD),
        ("hermes", "Let me see.\n" + HERMES, "Let me see.", ADD),
        ("hermes", HERMES + "\n" + HERMES.replace("add", "now"), "", [*ADD, ("now", {"a": 1})]),
        ("hermes", HERMES + "\nDone.", "Done.", ADD),
        ("hermes", HERMES.replace('{"a": 1}', '{"note": "</tool_call> }"}'), "",
         [("add", {"note": "</tool_call> }"})]),
        ("hermes", '<tool_call>{"arguments": {"a": 1}, "name": "add"}</tool_call>', "", ADD),
        ("hermes", '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>', "", ADD),
        ("hermes", '<tool_call>{"name": "add", "arguments": {"a": 1}, "id": "x"}</tool_call>', "", ADD),
        ("hermes", '{"name": "add", "parameters": {"a": 2}}', "", [("add", {"a": 2})]),
        ("hermes", '[{"name": "add", "parameters": {"a": 2}}]', "", [("add", {"a": 2})]),
        ("hermes", '<|python_tag|>{"name": "now", "parameters": {}}', "", [("now", {})]),
        ("llama", '{"name": "add", "parameters": {"a": 1}}; {"name": "now", "parameters": {}}', "", BOTH),
        ("llama", '{"name": "add", "parameters": {"note": "x; y"}}', "", [("add", {"note": "x; y"})]),
        ("qwen-xml",
         "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=note>\n  two\nlines"
         "\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
         "", [("add", {"a": 1, "note": "  two\nlines"}), ("now", {})]),
        ("glm",
         "\n<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"
         "\n<tool_call>now\n</tool_call>", "", BOTH),
        ("glm", "<tool_call>add<arg_key>note</arg_key><arg_value>12</arg_value></tool_call>", "",
         [("add", {"note": "12"})]),
        ("invoke",
         '<minimax:tool_call>\n<invoke name="add">\n<parameter name="a" string="false">1</parameter>\n</invoke>\n'
         '<invoke name="now">\n</invoke>\n</minimax:tool_call>', "", BOTH),
        ("mistral", '[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]now[ARGS]{}', "", BOTH),
        ("mistral", '[TOOL_CALLS]add[CALL_ID]abcdefghi[ARGS]{"a": 1}', "", ADD),
        ("mistral-list",
         '[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}, "id": "abcdefghi"}, '
         '{"name": "now", "arguments": {}}]', "", BOTH),
        ("deepseek",
         "So:<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜>"
         "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>", "So:", BOTH),
        ("deepseek-fenced",
         "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{\"a\": 1}\n```"
         "<｜tool▁call▁end｜><｜tool▁calls▁end｜>", "", ADD),
        ("kimi",
         "Hm.<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>"
         '{"a": 1}<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}'
         "<|tool_call_end|><|tool_calls_section_end|>", "Hm.", BOTH),
        ("gemma", '<|tool_call>call:add{a:1,note:<|"|>x, {y}<|"|>}<tool_call|>', "",
         [("add", {"a": 1, "note": "x, {y}"})]),
        ("function-gemma", "<start_function_call>call:now{}<end_function_call>", "", [("now", {})]),
        ("function-tag", '<function=add>{"a": 1}</function>', "", ADD),
        ("harmony",
         "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary "
         'to=functions.add <|constrain|>json<|message|>{"a": 1}', "", ADD),
        ("harmony", ' to=functions.add<|channel|>commentary json<|message|>{"a": 1}', "", ADD),
        ("harmony", "<|channel|>final<|message|>Hello < there", "Hello < there", []),
        ("harmony", "Hello", "Hello", []),
    ],
)  # fmt: skip
def test_calls_and_content_are_told_apart(
    form: str, text: str, content: str, calls: list[tuple[str, Any]], size: int
) -> None:
    said, found, _ = read(BY_NAME[form], cut(text, size))
    assert said == content
    assert [(name, json.loads(arguments)) for name, arguments in found] == calls


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("hermes", '{"name": "other", "parameters": {}}'),
        ("hermes", '{"plain": "json"}'),
        ("hermes", "Just text, a < b.  "),
        ("hermes", "<tool_call>\n{broken"),
        ("hermes", "Write <tool_call>{broken}</tool_call> to call.\n"),
        ("hermes", '<tool_call>{"name": "other", "arguments": {}}</tool_call>'),
        ("qwen-xml", "The tag <tool_call> and then <function=other> are marks.\n"),
        ("glm", "<tool_call>other\n</tool_call>"),
        ("mistral", "[TOOL_CALLS]other[ARGS]{}"),
        ("mistral", "[TOOL_CALLS]add[ARGS]nothing"),
        ("deepseek", "<｜tool▁calls▁begin｜> is a mark"),
        ("kimi", "<|tool_call_begin|>functions.other:0<|tool_call_argument_begin|>{}"),
        ("gemma", "<|tool_call>call:add{a:<}<tool_call|>"),
        ("function-tag", "<function=other>"),
    ],
)
def test_text_that_only_looks_like_a_call_comes_out_unchanged(
    form: str, text: str, size: int
) -> None:
    assert read(BY_NAME[form], cut(text, size)) == (text, [], "")


@pytest.mark.parametrize(
    ("form", "text", "arguments"),
    [
        ("hermes", '<tool_call>{"name": "add", "arguments": {"a": 1', '{"a": 1'),
        ("hermes", '<tool_call>{"name": "add", "arguments": {"a": 1</tool_call>', '{"a": 1'),
        ("mistral", '[TOOL_CALLS]add[ARGS]{"note": "x', '{"note": "x'),
        ("qwen-xml", "<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=no", '{"a": 1'),
    ],
)
def test_a_call_that_was_cut_short_keeps_what_there_is(
    form: str, text: str, arguments: str
) -> None:
    for size in (1, 1000):
        assert read(BY_NAME[form], cut(text, size)) == ("", [("add", arguments)], "")


def test_a_call_is_told_as_soon_as_it_is_whole() -> None:
    text = CallText(FALLBACK, FUNCTIONS)
    assert text.push('Well: <tool_call>{"name": "add", "arguments": {"note": "half a') == [
        Text("Well:")
    ]
    begun, arguments = text.push('n hour"}}')
    assert isinstance(begun, CallBegin) and (begun.index, begun.name) == (0, "add") and begun.id
    assert arguments == CallArguments(0, '{"note": "half an hour"}')


_MARKS = [mark for form in FORMS for mark in marks_of(form) if form.kind != "channels"]
_WORDS = st.one_of(
    st.sampled_from(
        [*_MARKS, "add", "now", "functions.add:0", '{"a": 1}', "{", "}", '"', "\n", " "]
    ),
    st.sampled_from(
        ['{"name": "add", "arguments": {"a": 1}}', '{"name": "now", "parameters": {}}']
    ),
    st.text(max_size=5),
)


@settings(max_examples=300, derandomize=True, database=None)
@given(
    st.sampled_from(FORMS),
    st.lists(_WORDS, max_size=12),
    st.lists(st.integers(1, 9), min_size=1, max_size=9),
)
def test_the_size_of_pieces_changes_nothing(
    form: CallForm, words: list[str], sizes: list[int]
) -> None:
    text = "".join(words)
    pieces: list[str] = []
    at = 0
    while at < len(text):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(text[at : at + size])
        at += size
    assert read(form, pieces) == read(form, [text])


@settings(max_examples=200, derandomize=True, database=None)
@given(st.sampled_from([form for form in FORMS if form.kind != "channels"]), st.text(max_size=60))
def test_text_without_marks_comes_out_as_it_went_in(form: CallForm, text: str) -> None:
    assert read(form, [text]) == (text, [], "")
