"""The forms in which models write tool calls: what stands before, in and after one.

Data alone: which form a template has is read in `style`, calls in `call_text`.
"""

from __future__ import annotations

from parlay.ask import CallForm

PYTHON_TAG = "<|python_tag|>"


def marks_of(form: CallForm) -> tuple[str, ...]:
    """Every text of a form that may hold a control token."""
    found = [form.begin, form.open, form.middle, form.close, form.end, form.quote]
    found += [form.key_open, form.key_close, form.value_close, PYTHON_TAG if form.bare else ""]
    return tuple(mark for mark in found if mark)


HERMES = CallForm(
    name="hermes",
    kind="json",
    shown=("<tool_call>",),
    open="<tool_call>",
    close="</tool_call>",
    bare=True,
)
LLAMA = CallForm(
    name="llama",
    kind="json",
    shown=('"parameters":',),
    open=PYTHON_TAG,
    arguments="parameters",
    bare=True,
)
FORMATS = (
    CallForm(
        name="harmony",
        kind="channels",
        shown=("<|channel|>", "<|message|>"),
        open=" to=functions.",
        middle="<|message|>",
        begin="<|start|>assistant<|channel|>final<|constrain|>",
        end="<|end|>",
    ),
    CallForm(
        name="gemma",
        kind="quoted",
        shown=("<|tool_call>call:",),
        open="<|tool_call>call:",
        middle="{",
        close="}<tool_call|>",
        quote='<|"|>',
    ),
    CallForm(
        name="function-gemma",
        kind="quoted",
        shown=("<start_function_call>call:",),
        open="<start_function_call>call:",
        middle="{",
        close="}<end_function_call>",
        quote="<escape>",
    ),
    CallForm(
        name="kimi",
        kind="named",
        shown=("<|tool_call_begin|>",),
        open="<|tool_call_begin|>",
        middle="<|tool_call_argument_begin|>",
        close="<|tool_call_end|>",
        begin="<|tool_calls_section_begin|>",
        end="<|tool_calls_section_end|>",
        prefix="functions.",
        counted=True,
    ),
    CallForm(
        name="deepseek-fenced",
        kind="named",
        shown=("<｜tool▁sep｜>", "```json"),  # noqa: RUF001 - the marks are written like this
        open="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",  # noqa: RUF001
        middle="\n```json\n",
        close="\n```<｜tool▁call▁end｜>",  # noqa: RUF001
        begin="<｜tool▁calls▁begin｜>",  # noqa: RUF001
        end="<｜tool▁calls▁end｜>",  # noqa: RUF001
    ),
    CallForm(
        name="deepseek",
        kind="named",
        shown=("<｜tool▁sep｜>",),  # noqa: RUF001
        open="<｜tool▁call▁begin｜>",  # noqa: RUF001
        middle="<｜tool▁sep｜>",  # noqa: RUF001
        close="<｜tool▁call▁end｜>",  # noqa: RUF001
        begin="<｜tool▁calls▁begin｜>",  # noqa: RUF001
        end="<｜tool▁calls▁end｜>",  # noqa: RUF001
    ),
    CallForm(
        name="mistral",
        kind="named",
        shown=("[TOOL_CALLS]", "[ARGS]"),
        open="[TOOL_CALLS]",
        middle="[ARGS]",
    ),
    CallForm(
        name="mistral-list", kind="json", shown=("[TOOL_CALLS]",), open="[TOOL_CALLS]", listed=True
    ),
    CallForm(
        name="glm",
        kind="tagged",
        shown=("<arg_key>",),
        open="<tool_call>",
        middle="\n",
        close="</tool_call>",
        key_open="<arg_key>",
        key_close="</arg_key>\n<arg_value>",
        value_close="</arg_value>",
    ),
    CallForm(
        name="qwen-xml",
        kind="tagged",
        shown=("<function=", "<parameter="),
        open="<function=",
        middle=">\n",
        close="</function>",
        closing="</function>\n</tool_call>",
        begin="<tool_call>",
        end="</tool_call>",
        key_open="<parameter=",
        key_close=">\n",
        value_close="\n</parameter>",
    ),
    CallForm(
        name="function-tag",
        kind="named",
        shown=("<function=",),
        open="<function=",
        middle=">",
        close="</function>",
    ),
    HERMES,
    LLAMA,
)
FALLBACK = HERMES
