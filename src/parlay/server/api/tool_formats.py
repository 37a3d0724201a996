"""The forms in which models write tool calls: what stands before, in and after one.

Data alone: which form a template has is read in `tool_form_reading`, calls in `tool_text`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["json", "named", "tagged", "quoted", "channels"]
PYTHON_TAG = "<|python_tag|>"


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One form. Marks are texts; some models have control tokens for them.

    json: an object with name and arguments, or a list of such. named: the name, then its arguments
    as JSON. tagged: the name, then each argument between marks. quoted: the name, then arguments
    with a quote of their own. channels: messages to a recipient.
    """

    name: str
    kind: Kind
    shown: tuple[str, ...]  # a template that writes all of these has this form
    open: str = ""  # before a call
    middle: str = ""  # after its name
    close: str = ""  # after it
    begin: str = ""  # before the first call
    end: str = ""  # after the last
    closing: str = ""  # all that a call must end with, where that is more than `close`
    prefix: str = ""  # of the name
    counted: bool = False  # the name carries the call's number
    arguments: str = "arguments"  # the key in an object
    listed: bool = False  # calls stand in a list
    bare: bool = False  # an answer that is nothing but such an object is a call, too
    key_open: str = ""
    key_close: str = ""
    value_close: str = ""
    quote: str = ""
    typed: bool = False  # an argument's tag says whether it is a text: string="true"

    @property
    def marks(self) -> tuple[str, ...]:
        """Every text that may hold a control token."""
        found = [self.begin, self.open, self.middle, self.close, self.end, self.quote]
        found += [self.key_open, self.key_close, self.value_close, PYTHON_TAG if self.bare else ""]
        return tuple(mark for mark in found if mark)


HERMES = ToolFormat(
    "hermes", "json", ("<tool_call>",), open="<tool_call>", close="</tool_call>", bare=True
)
LLAMA = ToolFormat(
    "llama", "json", ('"parameters":',), open=PYTHON_TAG, arguments="parameters", bare=True
)
FORMATS = (
    ToolFormat(
        "harmony",
        "channels",
        ("<|channel|>", "<|message|>"),
        open=" to=functions.",
        middle="<|message|>",
        begin="<|start|>assistant<|channel|>final<|constrain|>",
        end="<|end|>",
    ),
    ToolFormat(
        "gemma",
        "quoted",
        ("<|tool_call>call:",),
        open="<|tool_call>call:",
        middle="{",
        close="}<tool_call|>",
        quote='<|"|>',
    ),
    ToolFormat(
        "function-gemma",
        "quoted",
        ("<start_function_call>call:",),
        open="<start_function_call>call:",
        middle="{",
        close="}<end_function_call>",
        quote="<escape>",
    ),
    ToolFormat(
        "kimi",
        "named",
        ("<|tool_call_begin|>",),
        open="<|tool_call_begin|>",
        middle="<|tool_call_argument_begin|>",
        close="<|tool_call_end|>",
        begin="<|tool_calls_section_begin|>",
        end="<|tool_calls_section_end|>",
        prefix="functions.",
        counted=True,
    ),
    ToolFormat(
        "deepseek-fenced",
        "named",
        ("<｜tool▁sep｜>", "```json"),  # noqa: RUF001 - the marks are written like this
        open="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",  # noqa: RUF001
        middle="\n```json\n",
        close="\n```<｜tool▁call▁end｜>",  # noqa: RUF001
        begin="<｜tool▁calls▁begin｜>",  # noqa: RUF001
        end="<｜tool▁calls▁end｜>",  # noqa: RUF001
    ),
    ToolFormat(
        "deepseek",
        "named",
        ("<｜tool▁sep｜>",),  # noqa: RUF001
        open="<｜tool▁call▁begin｜>",  # noqa: RUF001
        middle="<｜tool▁sep｜>",  # noqa: RUF001
        close="<｜tool▁call▁end｜>",  # noqa: RUF001
        begin="<｜tool▁calls▁begin｜>",  # noqa: RUF001
        end="<｜tool▁calls▁end｜>",  # noqa: RUF001
    ),
    ToolFormat(
        "mistral",
        "named",
        ("[TOOL_CALLS]", "[ARGS]"),
        open="[TOOL_CALLS]",
        middle="[ARGS]",
    ),
    ToolFormat("mistral-list", "json", ("[TOOL_CALLS]",), open="[TOOL_CALLS]", listed=True),
    ToolFormat(
        "glm",
        "tagged",
        ("<arg_key>",),
        open="<tool_call>",
        middle="\n",
        close="</tool_call>",
        key_open="<arg_key>",
        key_close="</arg_key>\n<arg_value>",
        value_close="</arg_value>",
    ),
    ToolFormat(
        "qwen-xml",
        "tagged",
        ("<function=", "<parameter="),
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
    ToolFormat(
        "function-tag",
        "named",
        ("<function=",),
        open="<function=",
        middle=">",
        close="</function>",
    ),
    HERMES,
    LLAMA,
)
FALLBACK = HERMES
