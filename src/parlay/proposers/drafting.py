"""A draft in the making: tokens are chosen from rows of logits, one after the other.

Knows what was asked for, not which model the rows came from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from parlay.decoding.constraint import Constraint
from parlay.decoding.draft import NO_DRAFT, Distribution, Draft, Ready
from parlay.decoding.masked import masked
from parlay.decoding.sampling import Row, distribution, draw, likeliest
from parlay.decoding.verification import DRAFT_STREAM, draw_from
from parlay.proposers.proposer import Ask


@dataclass(frozen=True, slots=True)
class DraftLimits:
    """What holds for every draft of a model, whoever asks for it."""

    ends: frozenset[int]  # tokens after which nothing comes
    n_vocab: int  # the target's; ids beyond it would mean nothing to it
    n_batch: int  # rows of one pass at most


@dataclass(slots=True)
class Drafting:
    """One ask, and what has been drafted for it.

    Where what it drafted was committed, it goes on for the next ask. Another thread may add to it
    meanwhile: what `add` reads stays the same from ask to ask.
    """

    ask: Ask
    ends: frozenset[int]
    n_vocab: int  # the target's; ids beyond it would mean nothing to it
    tokens: list[int] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    q: list[Distribution] = field(default_factory=list)
    hidden_s: list[float] = field(default_factory=list)  # by token: what it took, if ahead
    n_told: int = 0  # tokens whose drafting has been told of
    n_past: int = 0  # leading tokens that are committed by now
    begins: int = field(init=False)  # tokens of the text before its first one
    position: int = field(init=False)  # the place of that one in the answer
    before: Sequence[int] = field(init=False)  # the text before it, where penalties look at it
    rated: bool = field(init=False)  # whether somebody wants confidences
    certain: bool = field(init=False)  # whether the likeliest token is taken, whatever it is

    def __post_init__(self) -> None:
        self.begins, self.position = len(self.ask.tokens), self.ask.position
        self.rated = self.ask.keep_going is not None
        self.certain = self.ask.sampling.untouched and not self.ask.rejection
        self.before = tuple(self.ask.tokens) if self.ask.sampling.penalised else ()

    def add(self, row: Row, hidden_s: float = 0.0) -> bool:
        """Choose the next token from its row; whether there may be another one."""
        ask = self.ask
        obeying = row if ask.constraint is None else self._obeying(row, ask.constraint)
        if obeying is None:
            return False
        known = obeying if len(obeying) <= self.n_vocab else obeying[: self.n_vocab]
        token = likeliest(known) if self.certain else self._draw(known)
        if self.rated:
            self.confidence.append(confidence(obeying, token, ask.sampling.temperature))
        self.hidden_s.append(hidden_s)
        self.tokens.append(token)  # last: whoever sees it finds the rest
        return len(self.tokens) - self.n_past < ask.window and token not in self.ends

    def n_agreed(self, tokens: Sequence[int]) -> int | None:
        """How many of its tokens a text has taken up; None: it went another way, or beyond."""
        n = len(tokens) - self.begins
        if not 0 <= n <= len(self.tokens):
            return None
        # Another thread may let the text grow meanwhile: no more of it than was counted.
        said = tokens[self.begins : self.begins + n]
        return n if not n or self.tokens[:n] == list(said) else None

    def contradicts(self, tokens: Sequence[int]) -> bool:
        """Whether it says something else than a text, as far as both go."""
        said = tokens[self.begins : self.begins + len(self.tokens)]
        return self.tokens[: len(said)] != list(said)

    def ready(self, tokens: Sequence[int]) -> Ready:
        """How much of it is a draft for a text, and what was drafted ahead since the last look."""
        # What is bound to one draw or grammar is not gone on with.
        n, first = None if self.ask.bound else self.n_agreed(tokens), self.n_told
        self.n_told = len(self.tokens)
        new = self.hidden_s[first : self.n_told]
        return Ready(0 if n is None else self.n_told - n, len(new) - new.count(0.0), sum(new))

    def take_up(self, ask: Ask) -> bool:
        """Go on for a later ask; whether anything of this is a draft for it."""
        n = self.n_agreed(ask.tokens)
        lacks = ask.keep_going is not None and not self.rated
        if n is None or n == len(self.tokens) or ask.bound or lacks:
            return False
        self.ask, self.n_past = ask, n
        return True

    def _obeying(self, row: Row, constraint: Constraint) -> Row | None:
        """The row without what a grammar forbids; None where nothing may follow the draft."""
        ask = self.ask
        draft = [*ask.tokens[len(ask.tokens) - ask.n_ahead :], *self.tokens]
        if ask.sampling.untouched and constraint.permits(draft, int(row.argmax())):
            return row
        allowed = constraint.allowed(draft)
        return None if allowed is None or not allowed.any() else masked(row, allowed)

    @property
    def worth_going_on(self) -> bool:
        """Whether another token is worth a step of its own, as far as anybody asked."""
        if not self.tokens:
            return True
        going, until = self.ask.keep_going, self.ask.until
        n, end = self.n_past, len(self.tokens)  # another thread may be adding the next one
        if going is not None and not going(self.confidence[n:end]):
            return False
        return until is None or not until(self.tokens[n:end], self.confidence[n:end])

    @property
    def lacks_more(self) -> bool:
        """Whether what there is should be gone on with for this ask."""
        if not self.tokens:
            return True
        unfinished = len(self.tokens) - self.n_past < self.ask.window
        return unfinished and self.tokens[-1] not in self.ends and self.worth_going_on

    def draft(self, name: str) -> Draft:
        """What came of it, as far as this ask wants it."""
        first, last = self.n_past, self.n_past + max(self.ask.window, 0)
        tokens = tuple(self.tokens[first:last])
        if not tokens:
            return replace(NO_DRAFT, proposer=name)
        last = first + len(tokens)
        hidden = self.hidden_s[first:last]
        return Draft(
            tokens,
            name,
            tuple(self.confidence[first:last]) if self.ask.keep_going is not None else (),
            tuple(self.q) if self.ask.rejection else None,
            len(hidden) - hidden.count(0.0),
            sum(hidden),
        )

    def _draw(self, row: Row) -> int:
        ask = self.ask
        history = (*self.before, *self.tokens) if ask.sampling.penalised else ()
        position = self.position + len(self.tokens)
        if not ask.rejection:
            return draw(row, ask.sampling, history, position)
        q = distribution(row, ask.sampling, history)
        self.q.append(q)
        return draw_from(q, ask.sampling.seed, position, DRAFT_STREAM)


def confidence(row: Row, token: int, temperature: float) -> float:
    """How far the token leads the best other one, as p / (p + p_other).

    A full softmax over the vocabulary costs more than the rest of a step together; the lead over
    the runner-up orders tokens just as well, and is calibrated against acceptance anyway.
    """
    own = row.item(token)
    row[token] = -math.inf
    other = row.item(row.argmax())  # in half the time of `max`
    row[token] = own
    lead = own - other if temperature == 0.0 else (own - other) / temperature
    return 1.0 / (1.0 + math.exp(-lead if lead > -50.0 else 50.0))
