"""The scheduler: every sequence's next round, in one pass of the target where that is exact.

Knows passes, bets and verdicts; knows nothing of threads, files or HTTP.

The invariant: between rounds the target's cache holds every committed token of a sequence but the
last. It is asserted after each round. What fails for one sequence ends that one only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from parlay.decoding.logprobs import TokenLogprob, token_logprob
from parlay.decoding.masks import Masked, prepare
from parlay.decoding.round import Timing
from parlay.decoding.span import Span, Target, nothing
from parlay.decoding.verdict import Verdict
from parlay.decoding.verification import verify
from parlay.engine.bets import Bets
from parlay.engine.exact.composition import ANY_SHAPE, Composition
from parlay.engine.exact.exactness import Inexact
from parlay.engine.exact.firming import Firming
from parlay.engine.faults import Faults, as_parlay
from parlay.engine.padding import Padding
from parlay.engine.placed_bet import Bet
from parlay.engine.prompts import Prompts
from parlay.engine.request import Mode
from parlay.engine.sequence import Sequence
from parlay.engine.slots import Slots
from parlay.engine.target_pass import PassOutcome, PassRow, PassTold, TargetPass
from parlay.errors import NothingFollows, ParlayError

# While others decode, a prompt's pass is as wide as passes are if they wait no longer for it.
_STALL_S = 0.15
# Of a long prompt every so many chunks' end is kept, beside the last one.
_CHUNKS_PER_MARK = 8
_NO_LOGITS: NDArray[np.float32] = np.empty((0, 0), np.float32)


# Before each pass over these spans, exact or not; why its bits may not be those of the class.
BeforePass = Callable[[Seq[Span], bool], Inexact | None]


def _in_one_class(seq: Sequence, bet: Bet) -> Bet:
    """A draft as far as the text that it makes stays in the class of the pass."""
    n = seq.n_alike(bet.draft.tokens)
    return bet if n == len(bet.draft.tokens) else bet.first(n)


class Scheduler:
    """Runs rounds for all sequences; one thread calls it."""

    def __init__(
        self,
        target: Target,
        slots: Slots,
        bets: Bets,
        composition: Composition,
        padding: Padding,
        *,
        mode: Mode,
        ends: frozenset[int],
        chunk: int,
        n_batch: int,
        n_call: int = 0,
        widest_chunk: int = 0,
        n_joined: int = 0,
        before_pass: BeforePass = lambda _spans, _exact: None,
        after_pass: Callable[[], None] = nothing,
    ) -> None:
        """`after_pass`: called once a pass, when every sink has been given what it brought.
        `widest_chunk`: tokens of a prompt that may be read beside others where that is quick;
        `n_joined`: of exact chunks that one pass may hold while nobody decodes."""
        self.target = target
        target.meanwhile = self._meanwhile
        self.bets = bets
        bets.learn_last = self._learn
        self.composition = composition
        self.spoiled: Inexact | None = None  # why no pass is exact now
        self.mode: Mode = mode
        self._slots = slots
        self._padding = padding
        self._ends = ends
        self._chunk = chunk
        self._n_batch = n_batch
        self._widest_chunk = max(chunk, widest_chunk)
        self._n_joined = n_joined
        # Several passes over prompts may be one call; in one cache they would be one pass.
        together = padding.cutting.unified or padding.cutting.recurrent
        self._n_call = n_batch if together else max(n_batch, n_call)
        self._prompts = Prompts(chunk, n_batch, self._n_call, target.steady)
        self._before_pass = before_pass
        self._after_pass = after_pass
        self._said = False  # whether any sink was given something since then
        self._firming = Firming(target, slots, self._is_ready)
        self._unready: Inexact | None = None  # what it said of the last pass
        self._waiting: deque[Sequence] = deque()
        self._active: list[Sequence] = []
        self._reading = False  # whether a pass was only started
        self._made: TargetPass | None = None  # under way
        self._unlearned: PassOutcome | None = None
        self._untold: PassTold | None = None
        self._faults = Faults()

    # -- what comes and goes --------------------------------------------------

    @property
    def idle(self) -> bool:
        return not self._waiting and not self._active

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    @property
    def active(self) -> tuple[Sequence, ...]:
        return tuple(self._active)

    def add(self, seq: Sequence) -> None:
        """Queue a sequence; it starts as soon as a slot is free."""
        self._waiting.append(seq)

    def step(self) -> None:
        """One round for every sequence that decodes, and a few passes over prompts."""
        self._drop_cancelled()
        self._admit()
        self.bets.crowded = bool(self._waiting)
        self._make_room()
        self._close_pass()  # of the last one, should answers have ended since
        for sequences in self._passes():
            self._run([seq for seq in sequences if not seq.done])
            self._retire()
            self._close_pass()

    def _admit(self) -> None:
        while self._waiting:
            seq = self._waiting[0]
            firm = self._is_exact([seq])
            try:
                place = self._slots.take(seq.request.prompt, seq.request.owner, firm=firm)
            except Exception as error:
                self._turn_away(seq, error)
                continue
            if place is None:
                return
            self._waiting.popleft()
            seq.seq_id, seq.n_cached, seq.n_firm = place
            self._active.append(seq)  # before anything can fail: it has a slot to give back
            with self._alone(seq):
                self._begin(seq, firm)
            if seq.done:
                self._retire()

    def _begin(self, seq: Sequence, firm: bool) -> None:
        """It has a slot, with what that still holds of its prompt."""
        seq.n_reused = seq.n_cached
        self._mark_turn(seq)
        if firm:
            seq.exact_class = self.composition.name
            seq.exact_cost_percent = self.composition.cost_percent
        seq.started = perf_counter()
        self.bets.begin(seq)

    def _turn_away(self, seq: Sequence, error: Exception) -> None:
        """The first in the queue cannot be given a slot: it ends, and the others go on."""
        self._faults.tell("an answer could not begin", error)
        seq.finish_early("error", as_parlay(error))
        self._leave_queue()

    def _drop_cancelled(self) -> None:
        gone = [seq for seq in (*self._waiting, *self._active) if seq.cancelled]
        for seq in gone:
            seq.finish_early("cancelled")
        if gone:
            self._leave_queue()
            self._retire()

    def tidy(self, called: Callable[[], bool]) -> None:
        """Nothing is asked for: time for what would make the next one wait, until one calls."""
        if self.mode == "exact" and not self.target.steady:  # a GPU has read it in no time
            self._firming.run(called)
        if not called():
            self._slots.tidy()

    def _is_ready(self, span: Span) -> bool:
        return self.spoiled is None and self._before_pass([span], True) is None

    def _leave_queue(self) -> None:
        for seq in [seq for seq in self._waiting if seq.done]:
            self._waiting.remove(seq)
            seq.retire()
            self._said = True

    def _retire(self) -> None:
        done = [seq for seq in self._active if seq.done]
        if done:
            self._tell_all()
        for seq in done:
            self._active.remove(seq)
            self._slots.release(seq.seq_id, seq.tokens[: seq.n_cached], seq.n_firm)
            n_read = len(seq.request.prompt) - seq.n_reused
            if seq.first_token is not None and n_read >= self._chunk:
                self._slots.copying.saw_reading(n_read, seq.first_token - seq.started)
            seq.retire()
            self.bets.finish(seq)  # last: should a proposer fail, nobody waits for this answer
            self._said = True

    def _passes(self) -> list[list[Sequence]]:
        """The passes of one step. Prompts are read apart where exactness asks for one shape."""
        reading = [seq for seq in self._active if seq.n_pending > 1]
        decoding = [seq for seq in self._active if seq.n_pending == 1]
        exact = self._is_exact(self._active)
        if self._padding.cutting.unified and not exact:
            return [decoding + reading] if self._active else []
        prompts: list[list[Sequence]] = []
        if reading:
            beside = self._n_beside()
            prompts = self._prompts.passes(reading, len(decoding), exact=exact, n_beside=beside)
        if exact:
            return [*prompts, *self.composition.groups(decoding)]
        # One pass over both would be cut in two, and its rounds would have another shape.
        return [decoding, *prompts] if decoding else prompts

    def _is_exact(self, sequences: Seq[Sequence]) -> bool:
        """Whether any of them is to be exact: then all their passes are."""
        return "exact" in [seq.request.mode or self.mode for seq in sequences]

    # -- one pass -------------------------------------------------------------

    def _run(self, sequences: Seq[Sequence], *, betting: bool = True) -> None:
        """Propose, verify, accept, roll back: one target pass, any number of sequences."""
        if not sequences:
            return
        self._wait_for_prompts(sequences)
        started = perf_counter()
        made = self._propose(sequences, betting)
        drafted = perf_counter()
        try:
            exact = self._is_exact([row.seq for row in made.rows])
            self._unready = self._before_pass(made.spans, exact)
            # Whoever compares bits there makes passes of its own: they are no part of this one.
            launched, busy = perf_counter(), self.target.busy_s
            logits = self._decode(made)
            self._catch_up()
        except Exception as error:
            self._recover(made.rows, error)
            return
        finally:
            self._padding.take_back(made.spans)
        read = {span.seq_id: p for span, p in zip(made.spans, logits, strict=True)}
        rounds = []
        for row in made.rows:
            try:
                rounds += [self._settle(row, read[row.seq.seq_id])] if row.span.n_logits else []
            except Exception as error:
                self._end(row.seq, error)
        for row in made.rows if made.reads_prompt else ():
            row.seq.n_cached = self.target.length(row.seq.seq_id)
            with self._alone(row.seq):
                self._mark(row)
        verify_s = self.target.busy_s - busy
        timing = Timing(
            draft_s=drafted - started,
            verify_s=verify_s,
            overhead_s=perf_counter() - launched - verify_s,
        )
        unready = self.spoiled or self._unready
        self._unlearned = PassOutcome(made, rounds, timing, unready)
        # A first token is waited for: the next pass has a new shape, and takes long to be launched.
        if made.reads_prompt or not self.target.steady:
            self._tell_all()

    def _meanwhile(self) -> None:
        """While a GPU computes a pass: all that the next one may depend on and this one did not."""
        self._catch_up()
        rows = () if self._made is None else self._made.rows
        for row in rows:
            try:
                self._prepare(row, len(rows))
            except Exception as error:  # of one text: whoever cannot go on ends when it is settled
                self._faults.tell("what is done beside a pass failed", error)
        try:
            self.bets.glance([row.seq for row in rows if row.decodes])
        except Exception as error:
            self._faults.tell("a glance beside a pass failed", error)

    def _prepare(self, row: PassRow, n_rows: int) -> None:
        """What the next round of one text will need."""
        if not row.decodes:
            self.bets.read(row.seq, meanwhile=True)
            return
        self.bets.prepare(row.seq, row.bet.draft.tokens, n_rows)
        if row.seq.constraint is not None:
            prepare(row.seq.constraint, row.bet.draft.tokens, row.seq.request.sampling)

    def _catch_up(self) -> None:
        """Tell what the last pass said, once it is learned from."""
        self._tell_all()
        self._close_pass()

    def _close_pass(self) -> None:
        """Every sink has been given all there is."""
        if not self._said:
            return
        self._said = False
        try:
            self._after_pass()
        except Exception as error:
            self._faults.tell("what was said could not be passed on", error)

    def _tell_all(self) -> None:
        self._learn()
        if self._untold is None:
            return
        told, self._untold = self._untold, None
        for row in told.outcome.made.rows:
            self._tell(row.seq)
        try:
            self._count(told)
        except Exception as error:
            self._faults.tell("a round could not be counted", error)

    def _tell(self, seq: Sequence) -> None:
        """A text that cannot be read ends its answer alone; a pass may be under way, so its cache
        stays as it is."""
        self._said = True
        try:
            seq.tell()
        except Exception as error:
            self._faults.tell("an answer failed", error)
            seq.finish_early("error", as_parlay(error))

    def _learn(self) -> None:
        """Let the controller know what the last pass showed."""
        if self._unlearned is None:
            return
        outcome, self._unlearned = self._unlearned, None
        settled = [(row, outcome.round_of(row, verdict)) for row, verdict in outcome.settled]
        self._untold = PassTold(outcome, settled)
        for row in outcome.made.rows:
            if row.decodes:
                row.seq.outside_s = 0.0  # told once
        rounds = self._untold.rounds
        if rounds:
            self.bets.learn(rounds)

    def _wait_for_prompts(self, sequences: Seq[Sequence]) -> None:
        """A round must not be charged with what is still being read."""
        if self._reading and any(seq.n_pending == 1 for seq in sequences):
            self.target.settle()
            self._reading = False

    def _decode(self, made: TargetPass) -> list[NDArray[np.float32]]:
        self.bets.before_pass([row.seq for row in made.rows])
        if any(span.n_logits for span in made.spans):
            self._made = made
            try:
                return self.target.decode(made.spans)
            finally:  # what is read again to take a draft back is no round
                self._made = None
        self._catch_up()
        self.target.start(made.spans)
        self._reading = True
        for row in made.rows:  # while a GPU reads the prompt, so do those who index it
            self.bets.read(row.seq, meanwhile=self.target.steady)
        return [_NO_LOGITS] * len(made.spans)

    def _propose(self, sequences: Seq[Sequence], betting: bool) -> TargetPass:
        """Controller sets the windows, proposers fill them; prompts go on by a chunk."""
        decoding = [seq for seq in sequences if seq.n_pending == 1]
        exact = self._is_exact(sequences)
        changes = exact and self.composition.wide is not None
        if changes and any(seq.repeating for seq in decoding):
            self.bets.controller.notice()  # such passes are wide, whoever bets on them
        frame = self.composition.frame(decoding) if exact and decoding else ANY_SHAPE
        placed = self.bets.place(decoding, frame) if betting else self.bets.abstain(decoding)
        if changes:
            placed = [_in_one_class(s, bet) for s, bet in zip(decoding, placed, strict=True)]
        rows = [PassRow.of_round(s, bet) for s, bet in zip(decoding, placed, strict=True)]
        room = (self._n_batch if rows else self._n_call) - sum(len(row.span.tokens) for row in rows)
        for seq in (seq for seq in sequences if seq.n_pending > 1):
            n, apart = self._to_read(seq, exact, room)
            if n:
                rows.append(PassRow.of_prompt(seq, n, apart))
                room -= n
        # llama.cpp batches neighbouring sequences only if their ids come in order.
        rows.sort(key=lambda row: row.seq.seq_id)
        return self._in_class(rows) if exact else self._padded(rows)

    def _in_class(self, rows: Seq[PassRow]) -> TargetPass:
        """As many rows for each as keep the pass in its class; a prompt's chunk is alone, and as
        it is. Padding goes as rejected drafts do, and its logits are asked for: how many are
        shapes the last layer."""
        held = None
        if rows and rows[0].decodes:
            held = self.composition.of([row.seq for row in rows])
            sizes = [len(row.span.tokens) for row in rows]
            widths = self.composition.widths(sizes, [row.span.start for row in rows], held)
            rows = [row.padded(n) for row, n in zip(rows, widths, strict=True)]
        return TargetPass.of(rows, [row.span for row in rows], held)

    def _padded(self, rows: Seq[PassRow]) -> TargetPass:
        """With rows that nobody reads, where the pass would be dearer or cut in parts without."""
        if len(rows) == 1 and rows[0].decodes:
            row = rows[0].padded(rows[0].bet.choice.width(len(rows[0].span.tokens)))
            return TargetPass.of([row], [row.span])
        given = [row.span for row in rows]
        if sum([len(span.tokens) for span in given]) > self._n_batch:
            # Of ids that fall llama.cpp puts no two together: each prompt is a part of its own.
            return TargetPass.of(rows[::-1], given[::-1])
        spans = self._padding.pad(given)
        if spans is not given:
            by_id = {span.seq_id: span for span in spans}
            rows = [replace(row, span=by_id[row.seq.seq_id]) for row in rows]
        return TargetPass.of(rows, spans)

    def _to_read(self, seq: Sequence, exact: bool, room: int) -> tuple[int, bool]:
        """Tokens of a prompt for this pass, and whether it may round otherwise than others: exact
        ones end at fixed places, the others are as many as may keep those waiting who decode."""
        joints, others = self._slots.joints, any(each.n_pending == 1 for each in self._active)
        if exact:
            most = 0 if others else min(self._n_joined, room)
            if n := joints.joined(seq.tokens, seq.n_cached, most):
                return n, True
            n, apart = joints.next_pass(seq.tokens, seq.n_cached)
            return n if n <= room else 0, apart
        n = min(seq.n_pending, room, self._n_beside() if others else self._n_batch)
        if n == seq.n_pending > self._chunk and self._padding.cutting.recurrent:
            n -= 1 + (seq.n_cached + n - 1) % self._chunk  # stop where it can be gone on from
        return n, joints.kernels

    def _n_beside(self) -> int:
        """Tokens of one prompt in a pass while others decode, where exactness lets it be any."""
        wide = self._widest_chunk
        quick = wide > self._chunk and self._slots.copying.reads_within(wide, _STALL_S)
        return wide if quick else self._chunk

    def _mark(self, row: PassRow) -> None:
        """A prompt is read but for its last pass: asked again it goes on from here. A long one is
        marked on the way too, for edits further back."""
        seq, far = row.seq, _CHUNKS_PER_MARK * self._chunk
        if row.decodes or seq.n_pending <= 1 or seq.n_cached - seq.n_reused < self._chunk:
            return
        lasting = seq.n_cached // far > row.span.start // far
        exact = self._is_exact([seq])
        if lasting or self._to_read(seq, exact, self._n_batch)[0] == seq.n_pending:
            self.target.mark(seq.seq_id, lasting=lasting)

    def _mark_turn(self, seq: Sequence) -> None:
        """An earlier turn ends here: the last message can be asked again or edited."""
        n_new = len(seq.request.prompt) - seq.n_reused
        if seq.n_reused:
            self.target.mark(seq.seq_id, lasting=n_new > 2 * self._chunk)

    def _settle(self, row: PassRow, p: NDArray[np.float32]) -> tuple[PassRow, Verdict]:
        """Verify one draft, commit what holds, and cut the cache back to all but the last token."""
        seq, draft = row.seq, row.bet.draft
        request, p = seq.request, p[: 1 + len(draft.tokens)]  # what follows is padding
        held = seq.constraint
        rows = p if held is None else Masked(p, held, draft.tokens, request.sampling)
        verdict = verify(draft, rows, request.sampling, seq.tokens, seq.n_generated, self._ends)
        if held is not None:
            held.accept(verdict.tokens)
        rejected = tuple(draft.tokens[verdict.n_accepted : verdict.n_drafted])
        n_taken = seq.commit(verdict, draft.proposer, self._logprobs(seq, p, verdict), rejected)
        keep = len(seq.tokens) - 1
        if keep < row.span.start + len(row.span.tokens):
            self.target.truncate(seq.seq_id, keep)
        assert self.target.length(seq.seq_id) == keep
        seq.n_cached = keep
        return row, verdict.first(n_taken)

    def _logprobs(
        self, seq: Sequence, p: NDArray[np.float32], verdict: Verdict
    ) -> list[TokenLogprob]:
        n_top = seq.request.logprobs
        if n_top is None:
            return []
        return [token_logprob(p[j], token, n_top) for j, token in enumerate(verdict.tokens)]

    def _count(self, told: PassTold) -> None:
        lost = self._lost(told.outcome)
        for row in told.outcome.made.rows:
            self._firm_up(row, exact=lost is None)
            if lost is not None:
                row.seq.spoil(lost)
        for row, found in told.settled:
            found.exact = lost is None
            row.seq.counts.observe(found)
            if row.decodes:
                row.seq.rounds.append(found)
        rounds = told.rounds
        if rounds:
            self.bets.tell(rounds)
        if told.read:
            self.bets.tell_read(told.read)

    def _lost(self, outcome: PassOutcome) -> Inexact | None:
        """Why a pass was not exact. A prompt's chunk read alone is: it is always read like that."""
        made = outcome.made
        if outcome.unready is not None:
            return outcome.unready
        if len(made.spans) == 1 and not made.rows[0].decodes:
            return None
        sizes, lengths = [len(s.tokens) for s in made.spans], [s.start for s in made.spans]
        read = all(s.n_logits == len(s.tokens) for s in made.spans)  # else a prompt shared it
        held = made.held or self.composition.found
        return None if read and held.holds(sizes, lengths) else Inexact.SHAPE

    def _firm_up(self, row: PassRow, *, exact: bool) -> None:
        """What the cache holds of a text is firm if it would hold the same whoever had read it:
        whole chunks of prompts; where chunks agree with the class, all that need not be
        read apart, but for what was read in a pass wider than a chunk, which nobody tried."""
        seq, span, joints = row.seq, row.span, self._slots.joints
        start, n = span.start, len(span.tokens)
        if exact and seq.n_firm == start:
            if not row.decodes and joints.is_usual(seq.tokens, start, n, apart=span.apart):
                seq.n_firm = start + n
            elif self.composition.found.prompts and n <= self._chunk and not span.apart:
                seq.n_firm = joints.agrees_until(seq.tokens, start, seq.n_cached)
        seq.n_firm = min(seq.n_firm, seq.n_cached)

    # -- the edges ------------------------------------------------------------

    def _make_room(self) -> None:
        """A full context ends the answer, or slides: the oldest half after the prompt goes."""
        fits = self.target.context_size - self.composition.floor
        near = [seq for seq in self._active if seq.n_cached > fits]
        for seq in near:
            if seq.n_pending != 1 or not self._is_full(seq):
                continue
            with self._alone(seq):
                if seq.request.context_full == "stop":
                    seq.finish_early("length")
                else:
                    self._slide(seq)
        if near:
            self._retire()

    def _is_full(self, seq: Sequence) -> bool:
        if self._is_exact([seq]):
            return self.composition.is_full(seq.n_cached)
        return seq.n_cached >= self.target.context_size

    def _slide(self, seq: Sequence) -> None:
        size = self.target.context_size
        seq.spoil(Inexact.SLIDE)
        keep = min(len(seq.request.prompt), size // 2)
        discard = max(1, (size - keep) // 2)
        if self.target.can_shift:
            self.target.shift(seq.seq_id, keep, discard)
            seq.n_cached -= discard
        else:  # what is left after the gap is read again, as a prompt is
            seq.n_cached = self._slots.keep(seq.seq_id, keep)
        self.bets.shift(seq.seq_id, keep, discard)
        del seq.tokens[keep : keep + discard]
        seq.n_firm = min(seq.n_firm, keep)

    def _recover(self, rows: Seq[PassRow], error: Exception) -> None:
        """A pass broke: each sequence goes on alone and without a draft, and ends if that breaks
        too. What cannot be cut out of a cache is read again, as a prompt is."""
        if not isinstance(error, ParlayError):
            self._faults.tell("a round failed", error)
        for row in rows:
            with self._alone(row.seq):
                if len(rows) == 1 and not row.bet.draft.tokens:
                    raise error
                row.seq.n_cached = self._slots.keep(row.seq.seq_id, row.span.start)
                if row.seq.n_cached != row.span.start:
                    row.seq.spoil(Inexact.RECOVERY)
                self._run([row.seq], betting=False)

    @contextmanager
    def _alone(self, seq: Sequence) -> Iterator[None]:
        """Whatever fails in here ends this sequence only, with its reason."""
        try:
            yield
        except Exception as error:
            self._end(seq, error)

    def _end(self, seq: Sequence, error: Exception) -> None:
        """One answer failed, or the grammar lets nothing follow."""
        self.target.clear(seq.seq_id)
        seq.n_cached = 0
        if isinstance(error, NothingFollows) and seq.may_end:
            seq.finish_early("stop")
            return
        if not isinstance(error, ParlayError):
            self._faults.tell("an answer failed", error)
        seq.finish_early("error", as_parlay(error))

    def fail_all(self, error: ParlayError) -> None:
        """End everything, for instance when the engine closes."""
        for seq in (*self._waiting, *self._active):
            seq.finish_early("error", error)
        self._leave_queue()
        self._retire()
        self._close_pass()
