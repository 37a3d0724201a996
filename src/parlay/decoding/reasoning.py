"""Splits an answer's text into thinking and saying, piece by piece.

Knows only the marks around the thinking; tokens and models are unknown here.
"""

from __future__ import annotations

from dataclasses import dataclass

OPEN, CLOSE = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class Marks:
    """What stands before and after the thinking."""

    open: str = OPEN
    close: str = CLOSE


THINK = Marks()
# Every form that is known; which one a model has is what its chat template writes.
FORMS = (
    Marks("<|channel|>analysis<|message|>", "<|end|>"),
    Marks("<|channel>thought\n", "<channel|>"),
    Marks("[THINK]", "[/THINK]"),
    Marks("<|START_THINKING|>", "<|END_THINKING|>"),
    Marks("<seed:think>", "</seed:think>"),
    THINK,
    Marks("<thinking>", "</thinking>"),
)


@dataclass(frozen=True, slots=True)
class Split:
    """What became certain."""

    reasoning: str = ""
    content: str = ""


class Reasoning:
    """Feed text in; thinking and content come out apart."""

    def __init__(self, *, thinking: bool, marks: Marks = THINK) -> None:
        self._marks = marks
        self.thinking = thinking  # the prompt may have opened the mark already
        self._begun = False  # content was seen: a later <think> is just text
        self._held = ""

    @property
    def over(self) -> bool:
        """Whether all that follows is content."""
        return self._begun and not self.thinking

    def push(self, text: str) -> Split:
        """Take text, hold back what may become a mark."""
        text, self._held = self._held + text, ""
        reasoning, content = "", ""
        if not self.thinking and not self._begun:
            text = self._maybe_open(text)
        if self.thinking:
            reasoning, text = self._until_close(text)
        if not self.thinking and text:
            content = text if self._begun else text.lstrip("\n")
            self._begun = self._begun or bool(content)
        return Split(reasoning, content)

    def finish(self) -> Split:
        """The rest, once no more will come."""
        held, self._held = self._held, ""
        return Split(reasoning=held) if self.thinking else Split(content=held)

    def _maybe_open(self, text: str) -> str:
        """An answer that starts with the mark starts with thinking."""
        start = text.lstrip()
        if start.startswith(self._marks.open):
            self.thinking = True
            return start[len(self._marks.open) :].lstrip("\n")
        if self._marks.open.startswith(start):  # not enough text to tell
            self._held = text
            return ""
        return text

    def _until_close(self, text: str) -> tuple[str, str]:
        close = self._marks.close
        at = text.find(close)
        if at >= 0:
            self.thinking = False
            return text[:at].rstrip("\n"), text[at + len(close) :]
        keep = held_back(text, close)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], ""


def held_back(text: str, mark: str) -> int:
    """Length of the longest end of `text` that begins the mark."""
    for n in range(min(len(text), len(mark) - 1), 0, -1):
        if mark.startswith(text[-n:]):
            return n
    return 0
