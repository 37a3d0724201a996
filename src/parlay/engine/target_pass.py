"""One pass of the target: whose rows it has, what came of it, and what is told of it.

Plain data; knows neither the target nor the controller.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from parlay.control.controller import plain
from parlay.decoding.draft import NO_DRAFT
from parlay.decoding.round import Fallback, Round, Timing
from parlay.decoding.span import Span, pad
from parlay.decoding.verdict import Verdict
from parlay.engine.exact.exactness import ExactClass, Inexact
from parlay.engine.placed_bet import Bet
from parlay.engine.sequence import Sequence

_PROMPT = Bet(plain(Fallback.REQUEST), NO_DRAFT)


@dataclass(slots=True)  # not frozen, as `Round` is not
class PassRow:
    """One sequence's part of a pass."""

    seq: Sequence
    bet: Bet
    span: Span
    decodes: bool = True  # whether this is a round, and not the reading of a prompt

    @classmethod
    def of_round(cls, seq: Sequence, bet: Bet) -> PassRow:
        tokens = [seq.tokens[-1], *bet.draft.tokens]
        return cls(seq, bet, Span(seq.seq_id, seq.n_cached, tokens, len(tokens)))

    @classmethod
    def of_prompt(cls, seq: Sequence, n: int, apart: bool) -> PassRow:
        tokens = seq.tokens[seq.n_cached : seq.n_cached + n]
        last = n == seq.n_pending  # the prompt's end: its logits begin the answer
        span = Span(seq.seq_id, seq.n_cached, tokens, int(last), apart=apart)
        return cls(seq, _PROMPT, span, decodes=False)

    @property
    def n_real(self) -> int:
        """Its rows that are not padding."""
        if self.decodes:
            return 1 + len(self.bet.draft.tokens)
        return len(self.span.tokens) - self.span.n_padding

    def padded(self, width: int) -> PassRow:
        span = self.span
        if width == len(span.tokens):
            return self
        wide = Span(span.seq_id, span.start, pad(span.tokens, width), width)
        return PassRow(self.seq, self.bet, wide, self.decodes)


@dataclass(slots=True)  # not frozen, as `Round` is not
class TargetPass:
    """What the target is asked for at once."""

    rows: Seq[PassRow]
    spans: Seq[Span]  # theirs in the same order, and padding of idle sequences between them
    n_rows: int
    n_padding: int
    reads_prompt: bool
    held: ExactClass | None  # the class it is to be in; None: any shape will do

    @classmethod
    def of(cls, rows: Seq[PassRow], spans: Seq[Span], held: ExactClass | None = None) -> TargetPass:
        n_rows = sum([len(span.tokens) for span in spans])
        n_padding = n_rows - sum([row.n_real for row in rows])
        return cls(rows, spans, n_rows, n_padding, not all(row.decodes for row in rows), held)


@dataclass(slots=True)  # not frozen, as `Round` is not
class PassOutcome:
    """What came of a pass."""

    made: TargetPass
    settled: Seq[tuple[PassRow, Verdict]]
    timing: Timing
    unready: Inexact | None  # why it was not exact, whatever its shape

    def round_of(self, row: PassRow, verdict: Verdict) -> Round:
        """As the controller learns from it; whether it was exact is seen when it is told."""
        bet, made = row.bet, self.made
        return Round(
            seq_id=row.seq.seq_id,
            proposer=bet.draft.proposer,
            window=bet.choice.window,
            n_drafted=verdict.n_drafted,
            n_accepted=verdict.n_accepted,
            n_generated=len(verdict.tokens),
            confidence=bet.draft.confidence,
            n_rows=row.n_real,
            n_sequences=len(made.rows),
            n_pass_rows=made.n_rows,
            n_padding=made.n_padding,
            outside_s=row.seq.outside_s,
            n_context=row.span.start,
            # The prompt's time is not a round's: time to first token tells it.
            timing=self.timing if row.decodes else Timing(),
            fallback=bet.fallback if row.decodes else None,
            n_dropped=bet.n_dropped,
            agreed=bet.agreed(verdict.tokens),
            expected_gain=bet.choice.expected_gain,
            reason=bet.choice.reason,
            position=row.seq.n_generated - len(verdict.tokens),
            reads_prompt=made.reads_prompt,
        )


@dataclass(frozen=True, slots=True)
class PassTold:
    """A pass that was learned from, and what is still to be said of it."""

    outcome: PassOutcome
    settled: Seq[tuple[PassRow, Round]]

    @property
    def rounds(self) -> list[Round]:
        """Without those that only read a prompt."""
        return [found for row, found in self.settled if row.decodes]

    @property
    def read(self) -> list[Round]:
        """Those alone: each gave the first token after a prompt, in the prompt's own time."""
        return [found for row, found in self.settled if not row.decodes]
