"""A draft in the making: tokens are chosen from rows of logits, one after the other.

Knows what was asked for, not which model the rows came from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from parlay.decoding.constraint import Constraint
from parlay.decoding.draft import Draft
from parlay.decoding.masks import masked
from parlay.decoding.sampling import Row, draw, likeliest
from parlay.proposers.proposer import Ask, Worth


@dataclass(frozen=True, slots=True)
class DraftLimits:
    """What holds for every draft of a model, whoever asks for it."""

    ends: frozenset[int]  # tokens after which nothing comes
    n_vocab: int  # the target's; ids beyond it would mean nothing to it
    n_batch: int  # rows of one pass at most


@dataclass(slots=True)
class Drafting:
    """One ask, and what has been drafted for it."""

    ask: Ask
    limits: DraftLimits
    rated: bool = False  # whether somebody wants confidences, which take time
    tokens: list[int] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)

    def add(self, row: Row) -> bool:
        """Choose the next token from its row; whether there may be another one."""
        ask, sampling = self.ask, self.ask.sampling
        obeying = row if ask.constraint is None else self._obeying(row, ask.constraint)
        if obeying is None:
            return False
        known = obeying[: self.limits.n_vocab]
        if sampling.untouched:
            token = likeliest(known)
        else:
            history = (*ask.tokens, *self.tokens) if sampling.penalised else ()
            token = draw(known, sampling, history, ask.position + len(self.tokens))
        if self.rated:
            self.confidence.append(confidence(obeying, token, sampling.temperature))
        self.tokens.append(token)
        return len(self.tokens) < ask.window and token not in self.limits.ends

    def _obeying(self, row: Row, constraint: Constraint) -> Row | None:
        """The row without what a grammar forbids; None where nothing may follow the draft."""
        ask = self.ask
        draft = [*ask.tokens[len(ask.tokens) - ask.n_ahead :], *self.tokens]
        if ask.sampling.untouched and constraint.permits(draft, int(row.argmax())):
            return row
        allowed = constraint.allowed(draft)
        return None if allowed is None or not allowed.any() else masked(row, allowed)

    def draft(self, name: str) -> Draft:
        """What came of it, and what a grammar forces behind it: that needs no model."""
        ask, tokens, sure = self.ask, tuple(self.tokens), tuple(self.confidence)
        if ask.constraint is not None and 0 < len(tokens) < ask.window:
            ahead = ask.tokens[len(ask.tokens) - ask.n_ahead :]
            forced = ask.constraint.forced([*ahead, *tokens])
            tokens, sure = tokens + forced.tokens, sure + forced.sure if self.rated else ()
        return Draft(tokens, name, sure).first(ask.window)


def extended(going: Sequence[Drafting], rows: Sequence[Row], worth: Worth | None) -> list[Drafting]:
    """One more token for each; those that may have another, and for which it is worth its cost."""
    on = [d for d, row in zip(going, rows, strict=True) if d.add(row)]
    if worth is None or not on:
        return on
    wanted = worth({d.ask.seq_id: d.confidence for d in on})
    return [d for d in on if d.ask.seq_id in wanted]


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
