"""Reads one answer's text: thinking, what is said and calls come out apart, as deltas.

Pure text: knows the form in which a model writes, and nothing of tokens, engines or formats of
clients. How the text is cut into pieces changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from parlay.ask import Facts, Pieces, ToolFunction
from parlay.chat.call_text import CallText
from parlay.chat.deltas import Delta, Scores, Text, Thought
from parlay.chat.harmony import HarmonyText
from parlay.decoding.reasoning import Marks, Reasoning, Split


class AnswerParser:
    """One answer, read piece by piece."""

    def __init__(
        self,
        facts: Facts,
        functions: Sequence[ToolFunction] = (),
        *,
        thinking: bool = False,
        split: bool = True,
    ) -> None:
        """`thinking`: the prompt's end opened it. `split`: it is told apart."""
        self.n_thought = 0  # tokens
        self._split = split
        self._channels: HarmonyText | None = None
        self._reasoning: Reasoning | None = None
        self._calls: CallText | None = None
        if facts.form.kind == "channels":
            self._channels = HarmonyText(functions)
            return
        if split:
            marks = Marks(facts.marks.open, facts.marks.close)
            self._reasoning = Reasoning(thinking=thinking, marks=marks)
        if functions:
            self._calls = CallText(facts.form, functions)

    @property
    def thinking(self) -> bool:
        """Whether the text is inside its thinking now."""
        if self._channels is not None:
            return self._split and self._channels.thinking
        return self._reasoning is not None and self._reasoning.thinking

    def push(self, pieces: Pieces) -> list[Delta]:
        """Take what a pass brought; what may still become a mark is held back."""
        found, n = list[Delta](), 0
        # Piece by piece while it thinks, to count what is thought; then all at once.
        while n < len(pieces.texts) and self.thinking:
            found += self._read(pieces.texts[n])
            self.n_thought += 1
            n += 1
        if rest := "".join(pieces.texts[n:]):
            found += self._read(rest)
        if pieces.details:
            found.append(Scores(pieces.texts, pieces.details, pieces.at_ms))
        return found

    def finish(self) -> list[Delta]:
        """The rest, once no more will come."""
        if self._channels is not None:
            return self._joined(self._channels.finish())
        found = [] if self._reasoning is None else self._said(self._reasoning.finish())
        return found if self._calls is None else [*found, *self._calls.finish()]

    def _read(self, text: str) -> list[Delta]:
        if self._channels is not None:
            return self._joined(self._channels.push(text))
        if self._reasoning is not None:
            return self._said(self._reasoning.push(text))
        return self._content(text)

    def _said(self, split: Split) -> list[Delta]:
        thought: list[Delta] = [Thought(split.reasoning)] if split.reasoning else []
        return thought + self._content(split.content)

    def _content(self, text: str) -> list[Delta]:
        if not text:
            return []
        return [Text(text)] if self._calls is None else self._calls.push(text)

    def _joined(self, said: list[Delta]) -> list[Delta]:
        """Thinking is left where it stands, unless it is told apart."""
        if self._split:
            return said
        return [Text(one.text) if isinstance(one, Thought) else one for one in said]


class RawText:
    """An answer's text as it is: plain completions have no thinking and no calls."""

    n_thought = 0

    def push(self, pieces: Pieces) -> list[Delta]:
        text = "".join(pieces.texts)
        found: list[Delta] = [Text(text)] if text else []
        if pieces.details:
            found.append(Scores(pieces.texts, pieces.details, pieces.at_ms))
        return found

    def finish(self) -> list[Delta]:
        return []
