# ruff: noqa: E501, RUF001 - templates, each with the marks of one form
"""What is read off a template: the form of its calls, the marks of its thinking, its switches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from parlay.chat.style import Style, style_of
from parlay.decoding.reasoning import THINK, Marks
from parlay.llama.model import Model
from parlay.llama.settings import ModelSettings
from parlay.llama.template import ChatTemplate

# Each writes a turn's calls in one form; all else is the same.
CALLS = {
    "hermes": '<tool_call>\n{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}\n</tool_call>',
    "llama": '{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}',
    "qwen-xml": "<tool_call>\n<function={{ f.name }}>\n{% for k, v in f.arguments.items() %}<parameter={{ k }}>\n{{ v }}\n</parameter>\n{% endfor %}</function>\n</tool_call>",
    "glm": "<tool_call>{{ f.name }}\n{% for k, v in f.arguments.items() %}<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v }}</arg_value>\n{% endfor %}</tool_call>",
    "mistral": "[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}",
    "mistral-list": '[TOOL_CALLS][{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}]',
    "deepseek": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{{ f.name }}<｜tool▁sep｜>{{ f.arguments | tojson }}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "deepseek-fenced": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ f.name }}\n```json\n{{ f.arguments | tojson }}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "kimi": "<|tool_calls_section_begin|><|tool_call_begin|>functions.{{ f.name }}:0<|tool_call_argument_begin|>{{ f.arguments | tojson }}<|tool_call_end|><|tool_calls_section_end|>",
    "gemma": "<|tool_call>call:{{ f.name }}{{ '{' }}{% for k, v in f.arguments.items() %}{{ k }}:<|\"|>{{ v }}<|\"|>{% endfor %}}<tool_call|>",
    "harmony": "<|start|>assistant to=functions.{{ f.name }}<|channel|>commentary json<|message|>{{ f.arguments | tojson }}<|call|>",
    "function-tag": "<function={{ f.name }}>{{ f.arguments | tojson }}</function>",
    "object": '<TOOLCALL>[{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}]</TOOLCALL>',
    "named": "<|call:name|>{{ f.name }}<|call:args|>{{ f.arguments | tojson }}<|call:end|>",
    "tagged": '<x:calls>\n<x:invoke name="{{ f.name }}">\n{% for k, v in f.arguments.items() %}<x:parameter name="{{ k }}">{{ v }}</x:parameter>\n{% endfor %}</x:invoke>\n</x:calls>',
}


@pytest.fixture(scope="module")
def model(target: Path) -> Iterator[Model]:
    with Model(target, ModelSettings()) as found:
        yield found


def template(call: str, start: str = "", end: str = "<|assistant|>\n") -> str:
    turn = (
        "{% if m.tool_calls %}{% for c in m.tool_calls %}{% set f = c.function %}"
        + call
        + "{% endfor %}"
        "{% else %}{{ m.content }}{% endif %}"
    )
    return (
        start + "{% for m in messages %}<|{{ m.role }}|>\n" + turn + "\n{% endfor %}"
        "{% if add_generation_prompt %}" + end + "{% endif %}"
    )


def style(model: Model, source: str) -> Style:
    return style_of(ChatTemplate(source, "<s>", "</s>"), model.vocabulary)


@pytest.mark.parametrize("name", CALLS)
def test_the_form_is_the_one_the_template_writes(model: Model, name: str) -> None:
    assert style(model, template(CALLS[name])).form.name == name


def test_what_a_template_only_talks_about_is_not_its_form(model: Model) -> None:
    talk = "{% if tools %}Never write <tool_call> or [TOOL_CALLS].\n{% endif %}"
    assert style(model, template(CALLS["glm"], start=talk)).form.name == "glm"


def test_marks_that_no_table_knows_are_taken_as_they_stand(model: Model) -> None:
    form = style(model, template(CALLS["tagged"])).form
    assert (form.begin, form.open, form.close) == ("<x:calls>", '<x:invoke name="', "</x:invoke>")
    assert (form.key_open, form.value_close) == ('<x:parameter name="', "</x:parameter>")
    form = style(model, template(CALLS["object"])).form
    assert (form.open, form.close, form.listed) == ("<TOOLCALL>", "</TOOLCALL>", True)


def test_a_template_without_calls_has_the_common_form(model: Model) -> None:
    source = "{% for m in messages %}{{ m.content }}{% endfor %}"
    assert style(model, source) == Style()
    refusing = (
        "{% if messages | length > 1 %}{{ raise_exception('no') }}{% endif %}[TOOL_CALLS]x[ARGS]"
    )
    assert style(model, refusing).form.name == "mistral"


@pytest.mark.parametrize(
    ("end", "marks", "can_think"),
    [
        ("<|assistant|>\n<think>\n{# </think> #}", THINK, True),
        ("{% if enable_thinking is false %}<think></think>{% endif %}", THINK, True),
        ("[THINK]{# [/THINK] #}", Marks("[THINK]", "[/THINK]"), True),
        ("<seed:think>{# </seed:think> #}", Marks("<seed:think>", "</seed:think>"), True),
        ("<|assistant|>\n", THINK, False),
    ],
)
def test_thinking_is_seen_in_the_prompts_end(
    model: Model, end: str, marks: Marks, can_think: bool
) -> None:
    found = style(model, template(CALLS["hermes"], end=end))
    assert (found.marks, found.can_think) == (marks, can_think)
    assert found.switches == (("enable_thinking",) if "enable" in end else ())


def test_what_a_template_refuses_is_known_before_anybody_asks(model: Model) -> None:
    strict = (
        "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('late') }}{% endif %}"
        "{% if not loop.first and m.role == loop.previtem.role %}{{ raise_exception('twice') }}{% endif %}"
        "{{ m.content }}{% endfor %}"
    )
    found = style(model, strict)
    assert not found.later_system and not found.same_twice
