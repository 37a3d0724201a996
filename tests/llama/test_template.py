"""Templates render as Hugging Face renders them, and none can run for ever or fill the memory."""

from __future__ import annotations

import json
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from parlay.errors import BadRequest
from parlay.llama import template as template_module
from parlay.llama.facts import read_facts
from parlay.llama.template import MAX_WORK, ChatTemplate
from tests.tiny_models import CHATML

CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Grüße & <b>"},
]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": 'of "Köln" <b>',
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
LLAMA3 = """
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Today Date: " + strftime_now("%d %b %Y") + "\\n\\n" }}
{{- system_message + "<|eot_id|>" }}
{%- for message in messages %}
    {%- if message.role not in ("user", "assistant") %}
        {{- raise_exception("Unknown role: " ~ message.role) }}
    {%- endif %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
QWEN = """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "system" and tools %}{%- continue %}{%- endif %}
    {%- if message.tool_calls %}
        {{- '<|im_start|>' + message.role }}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' ~ tool_call.name ~ '", "arguments": ' }}
            {%- set arguments = tool_call.arguments %}
            {{- arguments if arguments is string else arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- else %}
        {%- set content = message.content.split('</think>')[-1].lstrip('\\n') %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""


def rendered(source: str, messages: Any = CONVERSATION, **kwargs: Any) -> str:
    return ChatTemplate(source, "<s>", "</s>").render(messages, **kwargs)


def refusal(source: str, **kwargs: Any) -> str:
    with pytest.raises(BadRequest) as caught:
        rendered(source, **kwargs)
    assert "\n" not in caught.value.message
    return caught.value.message


# -- what real templates do -----------------------------------------------------------------------


def test_chatml() -> None:
    turns = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nGrüße & <b><|im_end|>\n"
    assert rendered(CHATML) == turns + "<|im_start|>assistant\n"
    assert rendered(CHATML, add_generation_prompt=False) == turns


def test_llama_3() -> None:
    days = [datetime.now()]
    found = rendered(LLAMA3)
    days.append(datetime.now())  # another one at midnight
    assert found in [
        "<s><|start_header_id|>system<|end_header_id|>\n\n"
        f"Today Date: {day:%d %b %Y}\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nGrüße & <b><|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
        for day in days
    ]


def test_qwen_with_tools() -> None:
    call = {"function": {"name": "weather", "arguments": {"city": "Köln"}}}
    messages = [
        *CONVERSATION,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": "3 °C"},
    ]
    assert rendered(QWEN, messages, tools=[TOOL], enable_thinking=False) == (
        "<|im_start|>system\nBe brief.\n\n# Tools\n<tools>\n"
        + json.dumps(TOOL, ensure_ascii=False)
        + "\n</tools><|im_end|>\n<|im_start|>user\nGrüße & <b><|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n'
        "</tool_call><|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n3 °C\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


def test_qwen_drops_earlier_thoughts() -> None:
    messages = [{"role": "assistant", "content": "<think>hm</think>\n\nYes"}]
    expected = "<|im_start|>assistant\nYes<|im_end|>\n"
    assert rendered(QWEN, messages, add_generation_prompt=False) == expected


@pytest.mark.weights
def test_the_default_model_s_own_template(smollm2: Path) -> None:
    source = read_facts(smollm2).chat_template
    assert source is not None
    assert rendered(source, [{"role": "user", "content": "Hi"}]) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ bos_token }}{{ eos_token }}{{ tools }}{{ documents }}", "<s></s>NoneNone"),
        ("{{ nothing }}{{ nothing is defined }}", "False"),
        ("{% if true %}\n  {% if true %}\nx\n{% endif %}\n{% endif %}\n", "x\n"),
        ("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% elif i == 3 %}{% break %}"
         "{% endif %}{{ i }}{% endfor %}", "02"),
        ("{% generation %}{{ 'kept' }}{% endgeneration %}", "kept"),
        ("{% set ns = namespace(n=1) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
         "{% endfor %}{{ ns.n }}", "3"),
        ("{% macro twice(x) %}{{ x }}{{ x }}{% endmacro %}{{ twice('ab') }}", "abab"),
        ("{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% endfor %}",
         "role=system;content=Be brief.;"),
        ("{{ messages | map(attribute='role') | join(', ') }}", "system, user"),
        ("{{ messages | join('/', attribute='role') }}", "system/user"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}", "1"),
        ("{{ ['a', 'b'].index('b') ~ '-'.join(['x', 'y']) ~ 1 ~ none }}", "1x-y1None"),
        ("{{ 'a-b'.replace('-', '+') }}{{ 'a-b' | replace('-', '*') }}", "a+ba*b"),
        ("{{ '%s|%03d' % ('x', 7) }}{{ '%(a)s' % {'a': 1} }}{{ '%s' | format('y') }}", "x|0071y"),
        ("{{ '<{}{b}{{}}>'.format('x', b='y') }}", "<xy{}>"),
        ("{{ 'a\nb' | indent(2) }}{{ 3 * 'x' }}{{ 2 ** 10 }}", "a\n  bxxx1024"),
        ("{{ [1] + [2] }}{{ (1, 2) }}{{ 7 % 4 }}{{ 1.5 * 2 }}", "[1, 2](1, 2)33.0"),
        ("{{ 'é<\"' | tojson }}{{ {'b': 1, 'a': [2]} | tojson }}", '"é<\\""{"b": 1, "a": [2]}'),
        ("{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=true) }}", '{\n "a": 2,\n "b": 1\n}'),
        ("{{ {'a': 'é'} | tojson(ensure_ascii=true, separators=(',', ':')) }}", '{"a":"\\u00e9"}'),
        ("{{ 'abc'[::-1] }}{{ 'b' in 'abc' }}{{ 1 if 2 > 1 else 0 }}", "cbaTrue1"),
    ],
)  # fmt: skip
def test_what_templates_use(source: str, expected: str) -> None:
    assert rendered(source) == expected


def test_keywords_reach_the_template() -> None:
    assert rendered("{{ depth }}{{ bos_token }}", depth=3, bos_token="other") == "3other"


def test_threads_share_a_template() -> None:
    shared = ChatTemplate(CHATML, "", "")
    results: set[str] = set()

    def render() -> None:
        results.update(shared.render(CONVERSATION) for _ in range(50))

    threads = [threading.Thread(target=render) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {rendered(CHATML)}


def test_a_long_conversation_is_well_within_the_bounds() -> None:
    messages = [{"role": "user", "content": "x" * 1000}] * 2000
    assert len(rendered(CHATML, messages)) > 2_000_000
    assert len(rendered(QWEN, messages)) > 2_000_000


# -- errors ---------------------------------------------------------------------------------------


def test_the_template_s_own_refusal_is_passed_on() -> None:
    assert refusal(LLAMA3, messages=[{"role": "pirate", "content": "Arr"}]) == (
        "The chat template refuses this request: Unknown role: pirate"
    )


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{% for %}", "cannot be used: "),
        ("{{ 'a' | no_such_filter }}", "cannot be used: No filter named"),
        ("{{ " + "(" * 5000 + ")" * 5000 + " }}", "cannot be used: RecursionError"),
        ("{{ messages[0].content.role.x }}", "refuses this request: 'str object' has no attribute"),
        ("{{ messages[0].content + 1 }}", "refuses this request: TypeError: "),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ raise_exception('a\nb') }}", "refuses this request: a b"),
        ("{% include 'other' %}", "no loader"),
    ],
)
def test_errors_are_one_line(source: str, reason: str) -> None:
    assert reason in refusal(source)


def test_a_template_of_absurd_length_is_refused() -> None:
    assert "has 1048577 characters" in refusal(" " * (1 << 20) + "x")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({}) }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ self.__init__.__globals__ }}",
        "{{ raise_exception.__globals__.json }}",
    ],
)
def test_the_sandbox_holds(source: str) -> None:
    assert "refuses this request" in refusal(source)


# -- bounds ---------------------------------------------------------------------------------------

SETUP = "{% set s = 'x' * 10**6 %}{% set long = s * 10 %}{% set l = [0] * 10**5 %}"
TOO_LONG = "makes a text or list of "
AT_ONCE = {
    "{{ range(10**9) }}": "Range too big",
    "{{ s * 10**9 }}": TOO_LONG,
    "{{ 10**9 * l }}": TOO_LONG,
    "{{ 9 ** (9 ** 9) }}": "makes a number of ",
    "{{ s | replace('x', s) }}": TOO_LONG,
    "{{ s.replace('x', s) }}": TOO_LONG,
    "{{ l | join(s) }}": TOO_LONG,
    "{{ s.join(s) }}": TOO_LONG,
    "{{ s | indent(10**9, true, true) }}": TOO_LONG,
    "{{ s | indent(s * 16 + s, true) }}": TOO_LONG,
    "{{ ('%s' * 99) % ((s,) * 99) }}": TOO_LONG,
    "{{ ('%(a)s' * 99) % {'a': s} }}": TOO_LONG,
    "{{ ('%s' * 99) | format(*([s] * 99)) }}": TOO_LONG,
    "{{ ('{a}' * 9999).format(a=s) }}": TOO_LONG,
    "{{ '%999999999d' % 1 }}": "a width of over three digits",
    "{{ '%.*f' | format(999999999, 1) }}": "a width of over three digits",
    "{{ '%(a)-9999d' % {'a': 1} }}": "a width of over three digits",
    "{{ '{:999999999}'.format(1) }}": "more than plain",
    "{{ '{:{}}'.format(1, 999999999) }}": "more than plain",
    "{{ strftime_now('%999999999d') }}": "an odd format",
    "{{ strftime_now('%d' * 99) }}": "an odd format",
}


@pytest.mark.parametrize(("source", "reason"), AT_ONCE.items(), ids=AT_ONCE.keys())
def test_what_would_fill_the_memory_at_once_is_refused_before(source: str, reason: str) -> None:
    assert reason in refusal(SETUP + source)


def cost(source: str) -> int:
    template = ChatTemplate(source, "", "")
    template.render([])
    return MAX_WORK - template._env.work_left


READ, MADE, WRITTEN = 10**7 // 64, 10**7 // 4, 10**7


@pytest.mark.parametrize(
    ("source", "least"),
    [
        ("{% if 'y' in long %}{% endif %}", READ),
        ("{% if long == 'y' %}{% endif %}", READ),
        ("{% if 'y' is eq(long) %}{% endif %}", READ),
        ("{% set t = long[1:] %}", READ),
        ("{% for c in long %}{% break %}{% endfor %}", READ),
        ("{% set n = long.count('y') %}", READ),
        ("{% set n = long | wordcount %}", READ),
        ("{% set n = [[[long]]] | tojson %}", MADE),
        ("{% set t = long | upper %}", READ + MADE),
        ("{% set t = long.upper() %}", READ + MADE),
        ("{% set t = long + 'y' %}", MADE),
        ("{% set t = long ~ 'y' %}", 2 * MADE),
        ("{% set t = [long] | join %}", 2 * MADE),
        ("{% set t = long | string %}", MADE),
        ("{% set t %}{{ long }}{% endset %}", WRITTEN),
        ("{{ long }}", WRITTEN),
        ("{{ [long] }}", WRITTEN),
        ("{% set n = l | max %}", 8 * 10**5),
        ("{% set n = l + l %}", 2 * 8 * 10**5),
        ("{% set n = s.split('x') %}", 8 * 10**6),
        ("{% set n = range(10**5) | max %}", 40 * 10**5),
        ("{% set n = l | map('abs') %}", 48 * 10**5),
        ("{% set n = l | selectattr('x') %}", 48 * 10**5),
        ("{% set n = l[1:] %}", 40 * 10**5),
        ("{% for x in l if x %}{% endfor %}", 40 * 10**5),
        ("{% for x in [1] recursive %}{% set y = loop([]) %}{% endfor %}", 300),
        ("{% for x in [1] if x recursive %}{% set y = loop(l) %}{% endfor %}", 40 * 10**5),
        ("{% set n = s.endswith(('y',) * 10**5) %}", 40 * 10**5),
        ("{% for x in [1, 2] %}{% endfor %}", 2 * 300),
        ("{% macro f() %}{% endmacro %}{% set n = [f(), f()] %}", 2 * 300),
        ("{% macro f() %}{{ caller() }}{% endmacro %}{% call f() %}{% endcall %}", 2 * 300),
        ("{% for x in [1, 2] %}" + "y" * 1000 + "{% endfor %}", 2 * 1300),
        ("{% for x in [1, 2] %}{{ '" + "y" * 1000 + "' }}{% endfor %}", 2 * 1300),
        ("{% set n = [[[1]]] | tojson(indent=1000) %}", 6 * 1000),
        ("{% set n = [1, 2] | tojson(separators=(s, ':')) %}", 2 * 10**6),
    ],
)
def test_everything_that_can_grow_has_its_price(source: str, least: int) -> None:
    assert cost(SETUP + source) - cost(SETUP) >= least


@pytest.mark.parametrize(
    "source",
    [
        "{% set n = [l | length, l | first, l[7], long | length] %}",
        "{% macro f(x) %}{% endmacro %}{% set n = f(l) ~ f(long) %}",
        "{% if l and long and long is string %}{% endif %}",
        "{% if long != 'y' %}{% endif %}",
    ],
)
def test_what_is_only_passed_on_is_cheap(source: str) -> None:
    assert cost(SETUP + source) - cost(SETUP) < READ * 1.1


TURNS = "{% for i in range(99999) %}"
LONG = "{% set s = 'x' * 10**7 %}"
WITHIN = "{% set ns = namespace(s='x', l=[1], n=3) %}{% for i in range(60) %}"
HOSTILE = {
    "range": "{{ range(10**9) | length }}",
    "nested loops": TURNS + TURNS + "{% endfor %}{% endfor %}",
    "loops over a list": "{% set l = range(99999) | list %}"
    + "{% for a in l %}{% for b in l if false %}{% endfor %}{% endfor %}",
    "recursive loop": "{% for i in [1, 2] recursive %}{% if loop.depth < 60 %}"
    "{{ loop([1, 2]) }}{% endif %}{% endfor %}",
    "recursive macro": "{% macro f(n) %}{% if n < 60 %}{{ f(n + 1) }}{{ f(n + 1) }}{% endif %}"
    "{% endmacro %}{{ f(0) }}",
    "endless recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "squares": WITHIN + "{% set ns.n = ns.n * ns.n %}{% endfor %}",
    "doubled by +": WITHIN + "{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "doubled by ~": WITHIN + "{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "doubled list": WITHIN + "{% set ns.l = ns.l + ns.l %}{% endfor %}",
    "doubled by a macro": "{% macro f(x) %}{{ x }}{{ x }}{% endmacro %}"
    + WITHIN + "{% set ns.s = f(ns.s) %}{% endfor %}",
    "doubled by a block": WITHIN
    + "{% set x %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = x %}{% endfor %}",
    "grown by replace": WITHIN + "{% set ns.s = ns.s | replace('x', 'xx') %}{% endfor %}",
    "grown by the method": WITHIN + "{% set ns.s = ns.s.replace('x', 'xx') %}{% endfor %}",
    "grown by join": WITHIN + "{% set ns.s = [ns.s, ns.s] | join %}{% endfor %}",
    "grown by the method join": WITHIN + "{% set ns.s = ns.s.join(['x', 'x', 'x']) %}{% endfor %}",
    "grown by format": WITHIN + "{% set ns.s = '%s%s' % (ns.s, ns.s) %}{% endfor %}",
    "grown by str.format": WITHIN + "{% set ns.s = '{}{}'.format(ns.s, ns.s) %}{% endfor %}",
    "padded": "{{ 'x'.ljust(10**9) }}",
    "centred": "{{ 'x' | center(10**9) }}",
    "indented JSON": "{{ [[[1]]] | tojson(indent=10**9) }}",
    "spaced JSON": "{{ [1, 2, 3] | tojson(separators=('x' * 10**6, ':')) }}",
    "bytes of a number": "{{ (1).to_bytes(10**9, 'big') }}",
    "lorem ipsum": "{{ lipsum(10**6) }}",
    "shared lists": WITHIN + "{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l | tojson }}",
    "shared lists as text": WITHIN + "{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
    "shared lists joined": WITHIN + "{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l ~ '' }}",
    "shared lists compared": "{% set ns = namespace(a=[], b=[]) %}{% for i in range(60) %}"
    "{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}{{ ns.a == ns.b }}",
    "shared lists tested": "{% set ns = namespace(a=[], b=[]) %}{% for i in range(60) %}"
    "{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}{{ ns.a is eq ns.b }}",
    "a namespace as text": WITHIN + "{% set ns.l = ns %}{% endfor %}{{ ns }}",
    "deep list": "{% set ns = namespace(l=[]) %}{% for i in range(5000) %}"
    "{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}",
    "long text in every turn": TURNS + "y" * 10_000 + "{% endfor %}",
    "long constant in every turn": TURNS + "{{ '" + "y" * 10_000 + "' }}{% endfor %}",
    "searched again and again": LONG + TURNS + "{% if 'y' in s %}{% endif %}{% endfor %}",
    "copied again and again": LONG + TURNS + "{% set t = s[1:] %}{% endfor %}",
    "counted again and again": LONG + TURNS + "{% set n = s.count('y') %}{% endfor %}",
    "upper again and again": LONG + TURNS + "{% set t = s | upper %}{% endfor %}",
    "largest again and again": TURNS + "{% set n = range(99999) | max %}{% endfor %}",
    "mapped again and again": TURNS
    + "{% set n = range(99999) | map(attribute='x') | list %}{% endfor %}",
}  # fmt: skip


@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_templates_are_refused(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_module, "MAX_WORK", MAX_WORK // 50)  # to be quick about it
    began = time.thread_time()
    assert refusal(source)
    assert time.thread_time() - began < 60  # 0.2 measured; most take years without a price


def test_the_work_of_one_render_is_what_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_module, "MAX_WORK", 100_000)
    template = ChatTemplate("{% for m in messages %}{{ m }}{% endfor %}", "", "")
    for _ in range(20):  # each render starts anew
        assert template.render([{"a": "b"}] * 100)
    with pytest.raises(BadRequest, match="takes too much work"):
        template.render([{"a": "b"}] * 1000)
