"""A draft in the making: tokens are chosen from rows of logits, one after the other.

Knows what was asked for, not which model the rows came from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from parlay.decoding.draft import NO_DRAFT, Distribution, Draft
from parlay.decoding.sampling import Row, distribution, draw
from parlay.decoding.verification import DRAFT_STREAM, draw_from
from parlay.proposers.proposer import Ask


@dataclass(slots=True)
class Drafting:
    """One ask, and what has been drafted for it."""

    ask: Ask
    ends: frozenset[int]
    n_vocab: int  # the target's; ids beyond it would mean nothing to it
    tokens: list[int] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    q: list[Distribution] = field(default_factory=list)

    def add(self, row: Row) -> bool:
        """Choose the next token from its row; whether there may be another one."""
        obeying = self._obeying(row)
        if obeying is None:
            return False
        token = self._choose(obeying[: self.n_vocab])
        self.tokens.append(token)
        if self.ask.keep_going is not None:
            self.confidence.append(confidence(obeying, token, self.ask.sampling.temperature))
        return len(self.tokens) < self.ask.window and token not in self.ends

    def _obeying(self, row: Row) -> Row | None:
        """The row without what a grammar forbids; None where nothing may follow the draft."""
        ask = self.ask
        if ask.constraint is None:
            return row
        ahead = ask.tokens[len(ask.tokens) - ask.n_ahead :]
        allowed = ask.constraint.allowed([*ahead, *self.tokens])
        if allowed is None or not allowed.any():
            return None
        n = min(len(row), len(allowed))
        obeying: Row = np.full(len(row), -np.inf, np.float32)
        obeying[:n][allowed[:n]] = row[:n][allowed[:n]]
        return obeying

    @property
    def worth_going_on(self) -> bool:
        """Whether another token is worth a step of its own, as far as anybody asked."""
        return self.ask.keep_going is None or self.ask.keep_going(self.confidence)

    def draft(self, name: str) -> Draft:
        """What came of it."""
        if not self.tokens:
            return replace(NO_DRAFT, proposer=name)
        q = tuple(self.q) if self.ask.rejection else None
        return Draft(tuple(self.tokens), name, tuple(self.confidence), q)

    def _choose(self, row: Row) -> int:
        ask = self.ask
        history = (*ask.tokens, *self.tokens) if ask.sampling.penalised else ()
        position = ask.position + len(self.tokens)
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
    own = float(row[token])
    row[token] = -np.inf
    other = float(row.max())
    row[token] = own
    lead = (own - other) / (temperature or 1.0)
    return 1.0 / (1.0 + math.exp(-max(lead, -50.0)))
