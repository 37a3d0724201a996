"""A plan: which answers share a pass, which part of a prompt is read, how many rows each has.

Knows lengths, rows and exact classes; nothing of models, drafts' origin or time. Where passes are
to be exact, prompts are read apart in parts that end at fixed places, and rounds are padded to a
shape of their class. Elsewhere any shape will do: a pass is padded only where llama.cpp would cut
it in parts otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from functools import partial

from parlay.control.choice import Choice
from parlay.control.prices.cost import CostTable
from parlay.control.prices.curve import MAX_ROWS, Curve
from parlay.control.prices.cutting import (
    Cutting,
    PassPart,
    is_whole,
    padded,
    seconds,
    unmeasured,
)
from parlay.decoding.round import Round, Timing
from parlay.decoding.span import Span, Target, pad
from parlay.decoding.verdict import Verdict
from parlay.engine.drafts import Drafted
from parlay.engine.exact.shapes import ANY_SHAPE, Composition, ExactClass, Frame, Inexact
from parlay.engine.request import Mode
from parlay.engine.sequence import Sequence
from parlay.engine.slots import Slots

# Passes over prompts between two rounds, at most; a GPU may be handed as many in one call.
PROMPTS_A_ROUND = 4
# While others decode, a prompt's pass is as wide as passes are if they wait no longer for it.
_STALL_S = 0.15
_READS = Drafted(Choice())


@dataclass(slots=True)
class Row:
    """One answer's part of a pass."""

    seq: Sequence
    drafted: Drafted
    span: Span
    decodes: bool = True  # whether this is a round, and not the reading of a prompt

    @property
    def n_real(self) -> int:
        """Its rows that are not padding."""
        if self.decodes:
            return 1 + len(self.drafted.draft.tokens)
        return len(self.span.tokens) - self.span.n_padding

    def padded(self, width: int) -> Row:
        span = self.span
        if width == len(span.tokens):
            return self
        # Its logits are asked for: how many are shapes the last layer.
        wide = Span(span.seq_id, span.start, pad(span.tokens, width), width)
        return Row(self.seq, self.drafted, wide, self.decodes)


@dataclass(slots=True)
class Plan:
    """What the target is asked for at once."""

    rows: Seq[Row]
    spans: Seq[Span]  # theirs in the same order, and padding of idle slots between them
    held: ExactClass | None = None  # the class it is to be in; None: any shape will do
    exact: bool = False  # whether anybody wants it exact

    @property
    def reads_prompt(self) -> bool:
        return not all(row.decodes for row in self.rows)

    @property
    def gives_logits(self) -> bool:
        return any(span.n_logits for span in self.spans)


@dataclass(slots=True)
class Passed:
    """A pass that was made, and is still to be told and learned from."""

    plan: Plan
    settled: Seq[tuple[Row, Verdict]]
    timing: Timing
    unready: Inexact | None  # why it was not exact, whatever its shape

    def rounds(self) -> list[tuple[Row, Round]]:
        """One for each answer that has tokens of it."""
        n_rows = sum([len(span.tokens) for span in self.plan.spans])
        n_padding = n_rows - sum([row.n_real for row in self.plan.rows])
        reads = self.plan.reads_prompt
        return [(row, self._round(row, v, n_rows, n_padding, reads)) for row, v in self.settled]

    def _round(self, row: Row, verdict: Verdict, n_rows: int, n_padding: int, reads: bool) -> Round:
        seq, drafted = row.seq, row.drafted
        outside_s = 0.0
        if row.decodes:
            outside_s, seq.outside_s = seq.outside_s, 0.0  # told once
        return Round(
            seq_id=seq.seq_id,
            answer=seq.number,
            proposer=drafted.draft.proposer,
            window=drafted.choice.window,
            n_drafted=verdict.n_drafted,
            n_accepted=verdict.n_accepted,
            n_generated=len(verdict.tokens),
            confidence=drafted.draft.confidence,
            n_rows=row.n_real,
            n_sequences=len(self.plan.rows),
            n_pass_rows=n_rows,
            n_padding=n_padding,
            n_context=row.span.start,
            # The prompt's time is not a round's: time to first token tells it.
            timing=self.timing if row.decodes else Timing(),
            fallback=drafted.fallback if row.decodes else None,
            n_dropped=drafted.n_dropped,
            outside_s=outside_s,
            agreed=drafted.agreed(verdict.tokens),
            expected_gain=drafted.choice.expected_gain,
            reason=drafted.choice.reason,
            position=seq.n_generated - len(verdict.tokens),
            reads_prompt=reads,
        )


class Planner:
    """Plans the passes of one engine."""

    def __init__(
        self,
        target: Target,
        slots: Slots,
        composition: Composition,
        cutting: Cutting,
        *,
        mode: Mode,
        chunk: int,
        n_batch: int,
        n_call: int = 0,
        widest_chunk: int = 0,
        n_joined: int = 0,
        prices: Callable[[], CostTable | None] = lambda: None,
    ) -> None:
        """`chunk`: tokens of a prompt in a pass if it is exact, and as a rule while others decode;
        `n_batch`: rows of a pass; `n_call`: rows that are handed over at once: several passes over
        prompts may be one call; `widest_chunk`: tokens of a prompt that may be read beside others
        where that is quick; `n_joined`: of exact chunks that one pass may hold while nobody
        decodes."""
        self.composition = composition
        self.mode: Mode = mode
        self.chunk = chunk
        self._target = target
        self._slots = slots
        self._cutting = cutting
        self._n_batch = n_batch
        # In one cache several passes would be one.
        together = cutting.unified or cutting.recurrent
        self._n_call = n_batch if together else max(n_batch, n_call)
        self._widest_chunk = max(chunk, widest_chunk)
        self._n_joined = n_joined
        self._prices = prices

    def is_exact(self, sequences: Seq[Sequence]) -> bool:
        """Whether any of them is to be exact: then all their passes are."""
        return "exact" in [seq.request.mode or self.mode for seq in sequences]

    # -- who shares a pass ----------------------------------------------------

    def groups(self, active: Seq[Sequence]) -> list[list[Sequence]]:
        """The passes of one step: prompts are read apart where exactness asks for one shape, or
        where a pass over both would be cut in two."""
        reading = [seq for seq in active if seq.n_pending > 1]
        decoding = [seq for seq in active if seq.n_pending == 1]
        exact = self.is_exact(active)
        if self._cutting.unified and not exact:
            return [decoding + reading] if active else []
        prompts = self._prompts(reading, decoding, exact) if reading else []
        if exact:
            return [*prompts, *self.composition.groups(decoding)]
        return [decoding, *prompts] if decoding else prompts

    def _prompts(
        self, reading: Seq[Sequence], decoding: Seq[Sequence], exact: bool
    ) -> list[list[Sequence]]:
        """The oldest goes on, and those that end in a pass come with it. Several passes where more
        wait for a first token than for the next one; on a GPU, where a round for few takes as long
        as one for all, also if each gives somebody the first."""
        oldest, n_each = reading[0], self._n_batch
        if decoding or exact:
            n_each = self.chunk if exact else self._n_beside()
        most = max(1, PROMPTS_A_ROUND * self.chunk // n_each) if decoding else PROMPTS_A_ROUND
        waited_for = min(most, max(1, len(reading) // max(1, len(decoding))))
        n_most = waited_for
        if self._target.steady:  # of several in a pass fewer: as many tokens between two rounds
            n_most = max(
                1, PROMPTS_A_ROUND * self.chunk // (self.chunk if exact else self._n_batch)
            )
        ending = self._ending([seq for seq in reading if seq.n_pending <= n_each], exact)
        if oldest.n_pending <= n_each:
            return self._joined(ending[:n_most], exact)
        found = [[oldest], *ending[: n_most - 1]]
        n_more = min(waited_for, -(-oldest.n_pending // n_each)) - len(found)
        return [*self._joined(found, exact), *[[oldest]] * n_more]

    def _ending(self, reading: Seq[Sequence], exact: bool) -> list[list[Sequence]]:
        """Prompts that end in a pass, by pass: exact ones alone, others with whom it has room for;
        with a part of another, llama.cpp would cut it in two."""
        passes: list[list[Sequence]] = []
        room = 0
        for seq in reading:
            if exact or seq.n_pending > room:
                passes.append([])
                room = self._n_batch
            passes[-1].append(seq)
            room -= seq.n_pending
        return passes

    def _joined(self, passes: list[list[Sequence]], exact: bool) -> list[list[Sequence]]:
        """Those over one prompt as one call: while a GPU computes one, the next is made ready."""
        if exact or self._n_call == self._n_batch:
            return passes
        alone = [each[0] for each in passes if len(each) == 1]
        shared = [each for each in passes if len(each) > 1]
        return [alone, *shared] if alone else shared

    # -- what a pass leaves to drafts -----------------------------------------

    def frame(self, decoding: Seq[Sequence], exact: bool) -> Frame:
        return self.composition.frame(decoding) if exact and decoding else ANY_SHAPE

    def equal(self, exact: bool) -> bool:
        """Whether all answers of a pass have equally many rows, or are cut in parts."""
        return exact or not self._cutting.unified or self._cutting.recurrent

    # -- rows -----------------------------------------------------------------

    def plan(
        self,
        sequences: Seq[Sequence],
        drafted: Seq[Drafted],
        width: Callable[[int], int],
        *,
        beside: bool,
    ) -> Plan:
        """The pass over those who decode, with their drafts, and a part of the others' prompts.
        `beside`: somebody decodes, in this pass or the next."""
        exact = self.is_exact(sequences)
        decoding = [seq for seq in sequences if seq.n_pending == 1]
        rows = [_round_row(s, each) for s, each in zip(decoding, drafted, strict=True)]
        room = (self._n_batch if rows else self._n_call) - sum(len(row.span.tokens) for row in rows)
        for seq in (seq for seq in sequences if seq.n_pending > 1):
            n, apart = self.next_part(seq, exact, room, beside)
            if n:
                rows.append(_prompt_row(seq, n, apart))
                room -= n
        # llama.cpp batches neighbouring sequences only if their ids come in order.
        rows.sort(key=lambda row: row.seq.seq_id)
        return self._in_class(rows) if exact else self._padded(rows, width)

    def next_part(
        self, seq: Sequence, exact: bool, room: int | None = None, beside: bool = False
    ) -> tuple[int, bool]:
        """Tokens of a prompt for its next pass, and whether it may round otherwise than others:
        exact ones end at fixed places, the others are as many as may keep those waiting who
        decode."""
        room, cut = self._n_batch if room is None else room, self._slots.boundaries
        if exact:
            most = 0 if beside else min(self._n_joined, room)
            if n := cut.joined(seq.tokens, seq.n_cached, most):
                return n, True
            n, apart = cut.next_pass(seq.tokens, seq.n_cached)
            return n if n <= room else 0, apart
        n = min(seq.n_pending, room, self._n_beside() if beside else self._n_batch)
        if n == seq.n_pending > self.chunk and self._cutting.recurrent:
            n -= 1 + (seq.n_cached + n - 1) % self.chunk  # stop where it can be gone on from
        return n, cut.kernels

    def _n_beside(self) -> int:
        """Tokens of one prompt in a pass while others decode, where exactness lets it be any."""
        wide = self._widest_chunk
        quick = wide > self.chunk and self._slots.copying.reads_within(wide, _STALL_S)
        return wide if quick else self.chunk

    def _in_class(self, rows: Seq[Row]) -> Plan:
        """As many rows for each as keep the pass in its class; a prompt's part is alone, and as it
        is. Padding goes as rejected drafts do."""
        held = None
        if rows and rows[0].decodes:
            held = self.composition.found
            sizes = [len(row.span.tokens) for row in rows]
            widths = self.composition.widths(sizes, [row.span.start for row in rows])
            rows = [row.padded(n) for row, n in zip(rows, widths, strict=True)]
        return Plan(rows, [row.span for row in rows], held, exact=True)

    def _padded(self, rows: Seq[Row], width: Callable[[int], int]) -> Plan:
        """With rows that nobody reads, where the pass would be dearer or cut in parts without."""
        if len(rows) == 1 and rows[0].decodes:
            row = rows[0].padded(width(len(rows[0].span.tokens)))
            return Plan([row], [row.span])
        given = [row.span for row in rows]
        if sum([len(span.tokens) for span in given]) > self._n_batch:
            # Of ids that fall llama.cpp puts no two together: each prompt is a part of its own.
            return Plan(rows[::-1], given[::-1])
        spans = self._whole(given)
        if spans is not given:
            by_id = {span.seq_id: span for span in spans}
            rows = [replace(row, span=by_id[row.seq.seq_id]) for row in rows]
        return Plan(rows, spans)

    def _whole(self, spans: Seq[Span]) -> Seq[Span]:
        """The spans of a pass, which come in order of their ids, with the padding that spares it
        being cut; the very same where that does not pay."""
        rows = {span.seq_id: len(span.tokens) for span in spans}
        cutting = self._cutting
        if len(spans) == 1 or is_whole(rows) or cutting.unified or cutting.recurrent:
            return spans  # and to take a token back out of a state is dear
        size, most = self._target.context_size, max(rows.values())
        ending = [span for span in spans if span.n_logits]
        room = size - max((len(span.tokens) for span in ending), default=0)
        # A prompt that goes on stays as it is, and who has no room for as many as the longest.
        fixed = rows.keys() - {span.seq_id for span in ending if span.start <= room}
        idle = [slot.seq_id for slot in self._slots.all if not slot.busy]
        spare = {s for s in idle if self._target.length(s) <= size - most}
        found = padded(rows, fixed, spare, cutting, self._price(spans))
        given = {span.seq_id: span for span in spans}
        return [
            _longer(given[s], n) if s in given else self._filler(s, n, spans)
            for s, n in found.items()
        ]

    def _price(self, spans: Seq[Span]) -> Callable[[Seq[PassPart]], float]:
        """Rounds are priced by their answers and rows, the reading of prompts by its rows."""
        costs = self._prices()
        reads = any(span.n_logits < len(span.tokens) for span in spans)
        if costs is None or (reads and costs.prompt is None):
            return unmeasured
        if reads and costs.prompt is not None:
            return partial(_reading_s, costs.prompt)
        return partial(seconds, costs=costs, n_context=max(span.start for span in spans))

    def _filler(self, seq_id: int, n: int, spans: Seq[Span]) -> Span:
        """Rows of an idle slot, which holds again afterwards what it held before."""
        return Span(seq_id, self._target.length(seq_id), [spans[0].tokens[-1]] * n, 0, n)

    def take_back(self, spans: Collection[Span]) -> None:
        """The rows of idle slots."""
        for span in spans:
            if span.n_padding == len(span.tokens):
                self._slots.keep(span.seq_id, span.start)

    # -- what was exact -------------------------------------------------------

    def lost(self, passed: Passed) -> Inexact | None:
        """Why a pass was not exact. A prompt's part read alone is: it is always read like that."""
        plan = passed.plan
        if passed.unready is not None:
            return passed.unready
        if len(plan.spans) == 1 and not plan.rows[0].decodes:
            return None
        sizes, lengths = [len(s.tokens) for s in plan.spans], [s.start for s in plan.spans]
        read = all(s.n_logits == len(s.tokens) for s in plan.spans)  # else a prompt shared it
        held = plan.held or self.composition.found
        return None if read and held.holds(sizes, lengths) else Inexact.SHAPE

    def firm_up(self, row: Row, *, exact: bool) -> None:
        """What the cache holds of a text is firm if it would hold the same whoever had read it:
        whole parts of prompts; where these agree with the class, all that need not be read apart,
        but for what was read in a pass wider than a chunk, which nobody tried."""
        seq, span, cut = row.seq, row.span, self._slots.boundaries
        start, n = span.start, len(span.tokens)
        if exact and seq.n_firm == start:
            if not row.decodes and cut.is_usual(seq.tokens, start, n, apart=span.apart):
                seq.n_firm = start + n
            elif self.composition.found.prompts and n <= self.chunk and not span.apart:
                seq.n_firm = cut.agrees_until(seq.tokens, start, seq.n_cached)
        seq.n_firm = min(seq.n_firm, seq.n_cached)

    def is_full(self, seq: Sequence) -> bool:
        """Whether not even a plain pass fits after its text."""
        if self.is_exact([seq]):
            return self.composition.is_full(seq.n_cached)
        return seq.n_cached >= self._target.context_size


def _round_row(seq: Sequence, drafted: Drafted) -> Row:
    tokens = [seq.tokens[-1], *drafted.draft.tokens]
    return Row(seq, drafted, Span(seq.seq_id, seq.n_cached, tokens, len(tokens)))


def _prompt_row(seq: Sequence, n: int, apart: bool) -> Row:
    tokens = seq.tokens[seq.n_cached : seq.n_cached + n]
    last = n == seq.n_pending  # the prompt's end: its logits begin the answer
    span = Span(seq.seq_id, seq.n_cached, tokens, int(last), apart=apart)
    return Row(seq, _READS, span, decodes=False)


def _longer(span: Span, n: int) -> Span:
    """With padding up to n tokens."""
    missing = n - len(span.tokens)
    if not missing:
        return span
    return replace(span, tokens=pad(span.tokens, n), n_padding=missing)


def _reading_s(prompt: Curve, parts: Seq[PassPart]) -> float:
    """Beyond what a table holds, as many times the most that it does."""
    rows = [part.n_rows for part in parts]
    return sum(max(1.0, n / MAX_ROWS) * prompt.of(min(n, MAX_ROWS), False) for n in rows)
