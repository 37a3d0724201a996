"""How one model's template writes: the form of its tool calls, the marks of its thinking.

Read off the template by rendering it, once, when the model is loaded. Knows no model by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from parlay.decoding.reasoning import FORMS, THINK, Marks
from parlay.errors import BadRequest
from parlay.llama.template import ChatTemplate
from parlay.llama.vocabulary import Vocabulary
from parlay.server.api.tool_form_reading import format_mentioned, format_shown
from parlay.server.api.tool_formats import FALLBACK, ToolFormat

_ASK = {"role": "user", "content": "?"}
_REPLY = {"role": "assistant", "content": "!"}
# Variables with which templates switch thinking off.
SWITCHES = ("enable_thinking", "thinking")
EFFORTS = ("reasoning_effort", "thinking_effort")


@dataclass(frozen=True, slots=True)
class Style:
    """What is known of a template."""

    form: ToolFormat = FALLBACK
    marks: Marks = THINK
    can_think: bool = False
    switches: tuple[str, ...] = ()  # variables that switch thinking off
    efforts: tuple[str, ...] = ()  # variables that say how much to think
    verbosity: bool = False
    later_system: bool = True  # a system message may stand further down
    same_twice: bool = True  # two messages of one role may follow each other
    control: Mapping[str, int] = field(default_factory=dict)  # texts that are one control token

    def shown(self, *, tools: bool) -> frozenset[int]:
        """Control tokens that count as text in an answer."""
        marks = (self.marks.open, self.marks.close, *(self.form.marks if tools else ()))
        return frozenset(
            token for word, token in self.control.items() if any(word in mark for mark in marks)
        )


def style_of(template: ChatTemplate | None, vocabulary: Vocabulary) -> Style:
    """Look at a template from all sides."""
    if template is None:
        return Style()
    form = format_shown(template.render) or format_mentioned(template.mentions) or FALLBACK
    marks = next((m for m in FORMS if template.mentions(m.close) and _opens(template, m)), THINK)
    switches = tuple(name for name in SWITCHES if _acts(template, name))
    words = {word for word in vocabulary.control_words() if word}
    texts = (marks.open, marks.close, *form.marks)
    wanted = {word for word in words if any(word in text for text in texts)}
    return Style(
        form=form,
        marks=marks,
        can_think=bool(switches) or form.kind == "channels" or _begins(template, marks),
        switches=switches,
        efforts=tuple(name for name in EFFORTS if template.mentions(name)),
        verbosity=template.mentions("verbosity"),
        later_system=_takes(template, _ASK, _REPLY, {"role": "system", "content": "!"}, _ASK),
        same_twice=_takes(template, _ASK, _ASK),
        control={word: _token(vocabulary, word) for word in wanted},
    )


def _token(vocabulary: Vocabulary, word: str) -> int:
    return vocabulary.tokenize(word, bos=False)[0]


def _opens(template: ChatTemplate, marks: Marks) -> bool:
    return template.mentions(marks.open.rstrip("\n")) or template.mentions(
        marks.open.split("\n")[0]
    )


def _begins(template: ChatTemplate, marks: Marks) -> bool:
    return marks.open in _rendered(template, _ASK)


def _acts(template: ChatTemplate, switch: str) -> bool:
    """Whether a variable makes another prompt of the same conversation."""
    try:
        options: list[dict[str, Any]] = [{switch: False}, {switch: True}]
        off, on = (template.render((_ASK,), **option) for option in options)
        return off != on
    except BadRequest:  # some templates refuse so short a conversation
        return False


def _takes(template: ChatTemplate, *messages: Mapping[str, str]) -> bool:
    return bool(_rendered(template, *messages)) or not _rendered(template, _ASK)


def _rendered(template: ChatTemplate, *messages: Mapping[str, str]) -> str:
    try:
        return template.render(messages)
    except BadRequest:
        return ""
