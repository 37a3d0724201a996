"""Reads answers in channels (gpt-oss): thinking, calls and what is said, each in messages.

Knows the marks of this form; knows no models. A call's arguments flow as they come.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from parlay.ask import ToolFunction
from parlay.chat.deltas import CallArguments, CallBegin, Delta, Text, Thought
from parlay.decoding.reasoning import held_back

MARKS = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>")
_BODY = "<|message|>"
_HEADS = ("assistant", "to=functions.", *MARKS)
_ENDS = ("<|end|>", "<|start|>")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"to=functions\.([^\s<]+)")


class HarmonyText:
    """One answer, read piece by piece; the prompt's end has said who speaks."""

    def __init__(self, functions: Sequence[ToolFunction]) -> None:
        self._names = frozenset(function.name for function in functions)
        self._text = ""
        self._in_body = False
        self._head = ""
        self._n_calls = 0

    @property
    def thinking(self) -> bool:
        """Whether the text is inside its thinking now."""
        return self._in_body and self._thinks

    def push(self, text: str) -> list[Delta]:
        self._text += text
        return self._run(final=False)

    def finish(self) -> list[Delta]:
        return self._run(final=True)

    def _run(self, final: bool) -> list[Delta]:
        said: list[Delta] = []
        while self._text:
            if not self._in_body:
                if not self._begin_body(final, said):
                    break
                continue
            body, ended = self._take_body(final)
            if body and self._recipient is not None:
                said.append(CallArguments(self._n_calls - 1, body))
            elif body:
                said.append(Thought(body) if self._thinks else Text(body))
            if not ended:
                break
            self._in_body = False
        return said

    def _begin_body(self, final: bool, said: list[Delta]) -> bool:
        start = self._text.lstrip()
        if not start.startswith(_HEADS):
            if not final and any(head.startswith(start) for head in _HEADS):
                return False
            self._head, self._in_body = "", True  # no channels at all: plain text
            return True
        head, found, rest = self._text.partition(_BODY)
        if not found:
            if final:
                self._text = ""  # a head without a body says nothing
            return False
        self._head, self._text, self._in_body = head, rest, True
        if self._recipient is not None:
            said.append(CallBegin.of(self._n_calls, self._recipient))
            self._n_calls += 1
        return True

    def _take_body(self, final: bool) -> tuple[str, bool]:
        """As much of a message as is certain, and whether it ended."""
        found = [(self._text.find(mark), mark) for mark in _ENDS if mark in self._text]
        if found:
            at, mark = min(found)
            body = self._text[:at]
            self._text = self._text[at + len(mark) :]
            return body, True
        held = 0 if final else max(held_back(self._text, mark) for mark in _ENDS)
        body = self._text[: len(self._text) - held]
        self._text = self._text[len(self._text) - held :]
        return body, False

    @property
    def _thinks(self) -> bool:
        channel = _CHANNEL.search(self._head)
        return channel is not None and channel.group(1) == "analysis"

    @property
    def _recipient(self) -> str | None:
        found = _RECIPIENT.search(self._head)
        return found.group(1) if found and found.group(1) in self._names else None
