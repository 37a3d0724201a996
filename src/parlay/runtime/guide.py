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

from parlay.decoding.grammar_constraint import GrammarConstraint
from parlay.decoding.reasoning import Marks
from parlay.decoding.spacing import Spacing
from parlay.llama.vocabulary import Vocabulary
from parlay.runtime.grammar import Grammars

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


@dataclass(frozen=True, slots=True)
class _Place:
    """A state and what may follow it, computed once."""

    state: State
    allowed: Allowed | None  # None: all


class Guide:
    """The constraint of one sequence."""

    def __init__(self, rules: Rules, *, thinking: bool) -> None:
        self._ends = rules.vocabulary.ends
        self._n = rules.vocabulary.size
        self._alphabet = rules.grammars.alphabet
        self._state: State = Thinking(rules) if thinking else begin(rules)
        self._places: dict[tuple[int, ...], _Place | None] = {}  # after the tokens of a draft

    def mask(self, p: NDArray[np.float32], draft: Sequence[int]) -> NDArray[np.float32]:
        """Rows with what may not come at -inf, each given that the draft held before it."""
        rows = p
        for j in range(len(p)):
            place = self._after(draft[:j])
            if place is None:
                break
            if place.allowed is not None:
                rows = np.array(p, dtype=np.float32) if rows is p else rows
                rows[j, : self._n][~place.allowed] = -np.inf
        return rows

    def allowed(self, draft: Sequence[int]) -> Allowed | None:
        """Which tokens may follow a draft; None where the draft itself may not come."""
        place = self._after(draft)
        if place is None:
            return None
        return np.ones(self._n, np.bool_) if place.allowed is None else place.allowed

    def n_obeying(self, draft: Sequence[int]) -> int:
        """How many leading tokens of a draft may come."""
        n = 0
        while n < len(draft) and self._after(draft[: n + 1]) is not None:
            n += 1
        return n

    def forced(self, spacing: Spacing) -> list[int]:
        """The tokens that must come next, where a grammar holds."""
        if not isinstance(self._state, Held):
            return []
        return GrammarConstraint(self._state.matcher, self._alphabet).forced(spacing)

    @property
    def complete(self) -> bool:
        """Whether the text so far may end here."""
        return not isinstance(self._state, Held) or bool(self._state.matcher.is_accepting())

    def accept(self, tokens: Sequence[int]) -> None:
        self._places.clear()
        for token in tokens:
            if token not in self._ends:
                self._state = self._state.after(token)

    def _after(self, draft: Sequence[int]) -> _Place | None:
        """The place after a draft; None where it may not come."""
        path = tuple(draft)
        if path not in self._places:
            state = self._state if not path else self._step(path)
            self._places[path] = None if state is None else _Place(state, state.allowed(self._n))
        return self._places[path]

    def _step(self, path: tuple[int, ...]) -> State | None:
        before, token = self._after(path[:-1]), path[-1]
        if before is None or token in self._ends:
            return None
        if before.allowed is not None and not before.allowed[token]:
            return None
        return before.state.after(token)


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
        return GrammarConstraint(self.matcher, self.rules.grammars.alphabet).allowed(())

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
