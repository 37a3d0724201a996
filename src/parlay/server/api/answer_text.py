"""An answer's text becomes thinking, content and calls, whatever form the model writes.

Knows the forms; knows neither tokens nor what a client is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from parlay.decoding.reasoning import Reasoning
from parlay.server.api.harmony import HarmonyText
from parlay.server.api.template_style import Style
from parlay.server.api.tool_text import ToolText
from parlay.server.api.tools import Said, ToolFunction


class AnswerText(Protocol):
    """Feed text in; its parts come out apart."""

    @property
    def thinking(self) -> bool:
        """Whether the text is inside its thinking now."""

    def push(self, text: str) -> Said: ...

    def finish(self) -> Said: ...


def answer_text(
    style: Style, functions: Sequence[ToolFunction], *, thinking: bool, split: bool
) -> AnswerText:
    """`thinking`: the prompt's end opened it. `split`: it is told apart."""
    if style.form.kind == "channels":
        text = HarmonyText(functions)
        return text if split else _Joined(text)
    reasoning = Reasoning(thinking=thinking, marks=style.marks) if split else None
    return MarkedText(reasoning, ToolText(style.form, functions) if functions else None)


class MarkedText:
    """Thinking between marks, then what is said, with calls in it."""

    def __init__(self, reasoning: Reasoning | None, tools: ToolText | None) -> None:
        self._reasoning = reasoning
        self._tools = tools

    @property
    def thinking(self) -> bool:
        return self._reasoning is not None and self._reasoning.thinking

    def push(self, text: str) -> Said:
        if self._reasoning is None:
            return self._said(text)
        split = self._reasoning.push(text)
        return self._said(split.content, split.reasoning)

    def finish(self) -> Said:
        thought, content = "", ""
        if self._reasoning is not None:
            rest = self._reasoning.finish()
            thought, content = rest.reasoning, rest.content
        said = self._said(content, thought)
        if self._tools is None:
            return said
        last = self._tools.finish()
        return Said(said.content + last.content, said.calls + last.calls, said.reasoning)

    def _said(self, text: str, reasoning: str = "") -> Said:
        if self._tools is None or not text:
            return Said(text, (), reasoning)
        said = self._tools.push(text)
        return Said(said.content, said.calls, reasoning)


class _Joined:
    """Thinking is left where it stands."""

    thinking = False

    def __init__(self, text: HarmonyText) -> None:
        self._text = text

    def push(self, text: str) -> Said:
        return _join(self._text.push(text))

    def finish(self) -> Said:
        return _join(self._text.finish())


def _join(said: Said) -> Said:
    return Said(said.reasoning + said.content, said.calls)
