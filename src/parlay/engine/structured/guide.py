"""Holds an answer to its form where it must have one: thinking has an end, a begun call a grammar.

A constraint whose rules change with the text. Until a mark has come, everything may; after it, its
grammar holds until that is complete. Knows tokens, marks and grammars, neither HTTP nor sampling.
A state never changes: what follows a token is another state, so drafts are followed and forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from parlay.decoding.constraint import NOTHING_FORCED, Forced, Mask
from parlay.decoding.masks import everything, only
from parlay.decoding.reasoning import Marks
from parlay.engine.structured.constraint import GrammarConstraint
from parlay.engine.structured.grammar import Grammars
from parlay.errors import BadRequest
from parlay.llama.vocabulary import Vocabulary


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


class GuideState(Protocol):
    """A place in an answer."""

    def allowed(self, n: int) -> Mask | None:
        """Which tokens may come next; None: all."""

    def must(self) -> int | None:
        """The only one that may, if there is one."""

    def permits(self, token: int) -> bool:
        """Whether this one may."""

    def after(self, token: int) -> GuideState:
        """The place after one more token."""


class Guide:
    """The constraint of one sequence."""

    def __init__(self, rules: Rules, *, thinking: bool) -> None:
        self._ends = rules.vocabulary.ends
        self._n = rules.vocabulary.size
        self._state: GuideState = Thinking(rules) if thinking else begin(rules)
        # After the tokens of a draft: the state, and its mask once that was asked for.
        self._states: dict[tuple[int, ...], GuideState | None] = {}
        self._masks: dict[tuple[int, ...], Mask] = {}

    def must(self, draft: Sequence[int]) -> int | None:
        """The only token that may follow a draft that holds, if there is one."""
        state = self._after(tuple(draft))
        return None if state is None else state.must()

    def permits(self, draft: Sequence[int], token: int) -> bool:
        """Whether a token may follow a draft that holds."""
        state = self._after(tuple(draft))
        return state is not None and token < self._n and state.permits(token)

    def allowed(self, draft: Sequence[int]) -> Mask | None:
        """Which tokens may follow a draft; None where the draft itself may not come."""
        path = tuple(draft)
        state = self._after(path)
        if state is None:
            return None
        if path not in self._masks:
            found = state.allowed(self._n)
            self._masks[path] = everything(self._n) if found is None else found
        return self._masks[path]

    def n_obeying(self, draft: Sequence[int]) -> int:
        """How many leading tokens of a draft may come."""
        n = 0
        while n < len(draft) and self._after(tuple(draft[: n + 1])) is not None:
            n += 1
        return n

    def forced(self, draft: Sequence[int] = ()) -> Forced:
        """The tokens that must follow a draft, where a grammar holds."""
        state = self._after(tuple(draft))
        return state.constraint.forced() if isinstance(state, Held) else NOTHING_FORCED

    @property
    def complete(self) -> bool:
        """Whether the text so far may end here."""
        if isinstance(self._state, Held):
            return self._state.constraint.complete
        return not isinstance(self._state, Broken)

    def accept(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if token not in self._ends:
                self._state = self._state.after(token)
        self._states.clear()
        self._masks.clear()

    def _after(self, path: tuple[int, ...]) -> GuideState | None:
        """The place after a draft; None where it may not come."""
        if not path:
            return self._state
        if path not in self._states:
            before, token = self._after(path[:-1]), path[-1]
            may = before is not None and token not in self._ends and before.permits(token)
            self._states[path] = before.after(token) if may and before is not None else None
        return self._states[path]


def begin(rules: Rules) -> GuideState:
    """The state where no thinking is, or is left."""
    return Held.by(rules, rules.afterwards) if rules.afterwards is not None else Free(rules)


@dataclass(frozen=True, slots=True)
class Thinking:
    """Everything may come, until the mark; when the budget is spent, the mark."""

    rules: Rules
    n: int = 0
    tail: bytes = b""

    def allowed(self, n: int) -> Mask | None:
        must = self.must()
        return None if must is None else only(n, must)

    def must(self) -> int | None:
        budget = self.rules.budget
        if budget is None or self.n < budget:
            return None
        return self.rules.farewell[self.n - budget]

    def permits(self, token: int) -> bool:
        return self.must() in (None, token)

    def after(self, token: int) -> GuideState:
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

    def allowed(self, n: int) -> Mask | None:
        return None

    def must(self) -> int | None:
        return None

    def permits(self, token: int) -> bool:
        return True

    def after(self, token: int) -> GuideState:
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
    constraint: GrammarConstraint = field(repr=False)  # looks ahead, and comes back

    @classmethod
    def by(cls, rules: Rules, grammar: str, begun: bytes = b"") -> GuideState:
        """`begun`: what already stands there; where that is no beginning, nothing holds."""
        held = cls(rules, rules.grammars.constraint(grammar))
        if not begun:
            return held
        text = begun.decode("utf-8", "replace")
        try:
            return held._on(rules.vocabulary.tokenize(text, bos=False, special=False))
        except BadRequest:
            return Free(rules, b"", False)

    def allowed(self, n: int) -> Mask | None:
        return self.constraint.allowed(())

    def must(self) -> int | None:
        return self.constraint.must(())

    def permits(self, token: int) -> bool:
        return self.constraint.permits((), token)

    def after(self, token: int) -> GuideState:
        try:
            return self._on([token])
        except BadRequest as error:
            return Broken(error)

    def _on(self, tokens: Sequence[int]) -> GuideState:
        return Held(self.rules, self.constraint.after(tokens))._next()

    def _next(self) -> GuideState:
        if not self.constraint.over or self.rules.afterwards is not None:
            return self
        return Over(self.rules) if self.rules.once else Free(self.rules, b"", False)


@dataclass(frozen=True, slots=True)
class Over:
    """Everything has been said."""

    rules: Rules

    def allowed(self, n: int) -> Mask | None:
        return only(n, *self.rules.vocabulary.ends)

    def must(self) -> int | None:
        return None  # any of the ends

    def permits(self, token: int) -> bool:
        return token in self.rules.vocabulary.ends

    def after(self, token: int) -> GuideState:
        return self


@dataclass(frozen=True, slots=True)
class Broken:
    """A grammar gave up: half a text must not pass for a whole one, so the answer ends here."""

    error: BadRequest

    def allowed(self, n: int) -> Mask | None:
        raise self.error

    def must(self) -> int | None:
        return None

    def permits(self, token: int) -> bool:
        return False

    def after(self, token: int) -> GuideState:
        return self
