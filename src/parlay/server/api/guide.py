"""Holds an answer to its form where it must have one: thinking has an end, a begun call a grammar.

A constraint whose rules change with the text. Until a mark has come, everything may; after it, its
grammar holds until that is complete. Knows tokens, marks and grammars, neither HTTP nor sampling.
A state never changes: what follows a token is another state, so drafts are followed and forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from parlay.decoding.reasoning import Marks
from parlay.llama.vocabulary import Vocabulary
from parlay.server.api.grammar import Grammars

Allowed = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds in one answer, and when."""

    vocabulary: Vocabulary
    grammars: Grammars
    shown: frozenset[int]  # control tokens that count as text
    marks: Marks = Marks()  # noqa: RUF009 - frozen, so sharing it is safe
    budget: int | None = None  # tokens of thinking
    farewell: tuple[int, ...] = ()  # what ends the thinking by force
    afterwards: str | None = None  # the grammar of all that follows the thinking
    # Marks, each with the grammar that holds after it; the others only as first words.
    triggers: tuple[tuple[bytes, str], ...] = ()
    first_words: tuple[tuple[bytes, str], ...] = ()
    once: bool = False  # after one call the answer is over

    def bytes_of(self, token: int) -> bytes:
        if token in self.shown:
            return self.vocabulary.text_of(token).encode()
        return self.vocabulary.piece(token)

    @property
    def longest(self) -> int:
        marks = [self.marks.open.encode(), self.marks.close.encode()]
        return max(len(mark) for mark in (*marks, *(mark for mark, _ in self.triggers)))


class State(Protocol):
    """A place in an answer."""

    def allowed(self, n: int) -> Allowed | None:
        """Which tokens may come next; None: all."""

    def after(self, token: int) -> State:
        """The place after one more token."""


class Guide:
    """The constraint of one sequence."""

    def __init__(self, rules: Rules, *, thinking: bool) -> None:
        self._ends = rules.vocabulary.ends
        self._state: State = Thinking(rules) if thinking else begin(rules)

    def mask(self, p: NDArray[np.float32], draft: Sequence[int]) -> NDArray[np.float32]:
        """Rows with what may not come at -inf, each given that the draft held before it."""
        rows, state = p, self._state
        for j in range(len(p)):
            allowed = state.allowed(p.shape[1])
            if allowed is not None:
                rows = np.array(p, dtype=np.float32) if rows is p else rows
                rows[j, ~allowed] = -np.inf
            if j >= len(draft) or draft[j] in self._ends:
                break
            if allowed is not None and not allowed[draft[j]]:
                break
            state = state.after(draft[j])
        return rows

    @property
    def complete(self) -> bool:
        """Whether the text so far may end here."""
        return not isinstance(self._state, Held) or bool(self._state.matcher.is_accepting())

    def accept(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if token not in self._ends:
                self._state = self._state.after(token)


def begin(rules: Rules) -> State:
    """The state where no thinking is, or is left."""
    return Held.by(rules, rules.afterwards) if rules.afterwards is not None else Free(rules)


@dataclass(frozen=True, slots=True)
class Thinking:
    """Everything may come, until the mark; when the budget is spent, the mark."""

    rules: Rules
    n: int = 0
    tail: bytes = b""

    def allowed(self, n: int) -> Allowed | None:
        budget = self.rules.budget
        if budget is None or self.n < budget:
            return None
        return _only(n, self.rules.farewell[self.n - budget])

    def after(self, token: int) -> State:
        rules = self.rules
        tail = self.tail + rules.bytes_of(token)
        if rules.marks.close.encode() in tail:
            return begin(rules)
        spent = rules.budget is not None and self.n + 1 >= rules.budget + len(rules.farewell)
        return begin(rules) if spent else replace(self, n=self.n + 1, tail=tail[-rules.longest :])


@dataclass(frozen=True, slots=True)
class Free:
    """Everything may come, until a mark begins something."""

    rules: Rules
    tail: bytes = b""
    fresh: bool = True  # nothing but space has come

    def allowed(self, n: int) -> Allowed | None:
        return None

    def after(self, token: int) -> State:
        rules = self.rules
        tail = self.tail + rules.bytes_of(token)
        if self.fresh and tail.lstrip().startswith(rules.marks.open.encode()):
            return Thinking(rules)
        marks = (*rules.triggers, *(rules.first_words if self.fresh else ()))
        for mark, grammar in marks:
            at = tail.find(mark)
            if at >= 0:
                return Held.by(rules, grammar, tail[at + len(mark) :])
        words = [mark for mark, _ in rules.first_words] + [rules.marks.open.encode()]
        start = tail.lstrip()
        fresh = self.fresh and any(mark.startswith(start) for mark in words)
        return Free(rules, tail if fresh else tail[-rules.longest :], fresh)


@dataclass(frozen=True, slots=True)
class Held:
    """A grammar holds, until its text is complete."""

    rules: Rules
    matcher: Any = field(repr=False)

    @classmethod
    def by(cls, rules: Rules, grammar: str, begun: bytes = b"") -> State:
        """`begun`: what already stands there; where that is no beginning, nothing holds."""
        held = cls(rules, rules.grammars.matcher(grammar))
        if not begun:
            return held
        tokens = rules.vocabulary.tokenize(
            begun.decode("utf-8", "replace"), bos=False, special=False
        )
        return held._next() if held.matcher.consume_tokens(tokens) else Free(rules, b"", False)

    def allowed(self, n: int) -> Allowed | None:
        return self.rules.grammars.allowed(self.matcher, n)

    def after(self, token: int) -> State:
        matcher = self.matcher.deep_copy()
        if not matcher.consume_token(token):  # never of our own allowing
            return Free(self.rules, b"", False)
        return Held(self.rules, matcher)._next()

    def _next(self) -> State:
        if not self.matcher.is_stopped() or self.rules.afterwards is not None:
            return self
        return Over(self.rules) if self.rules.once else Free(self.rules, b"", False)


@dataclass(frozen=True, slots=True)
class Over:
    """Everything has been said."""

    rules: Rules

    def allowed(self, n: int) -> Allowed | None:
        return _only(n, *self.rules.vocabulary.ends)

    def after(self, token: int) -> State:
        return self


def _only(n: int, *tokens: int) -> Allowed:
    allowed = np.zeros(n, np.bool_)
    allowed[list(tokens)] = True
    return allowed
