"""The loop: one round after the other for all answers, on one thread. Read `step` and `_round`.

Knows passes, drafts and verdicts; nothing of threads, files or HTTP.

A round: answers that ended or were taken back go and others come (`_admit`); what each drafts is
chosen and planned into a pass (`drafts`, `plan`); the pass is launched; while a GPU computes it,
the pass before is learned from and told (`_catch_up`), and proposers prepare (`_beside`); then its
drafts are verified, what holds is committed, and the caches are cut to it (`_settle`).

A choice knows every pass but the last in full, and of the last one only what held
(`Sequence.held`): learning has one place, beside the running pass. A CPU computes within the
launch, so there the same is done as soon as the pass is settled.

Between rounds the target's cache holds every committed token of an answer but the last. That is
checked after each round, and what fails for one answer ends that one only.

| datum | who owns it | what others may do |
|---|---|---|
| target, slots, proposers, controller, the plan of a pass | the engine's thread | nothing |
| an answer's tokens, counts, rounds | the engine's thread | read; complete once it is `retired` |
| `Sequence.cancelled` | its caller, who sets it | the engine's thread reads it once a round |
| pieces | the engine's thread, until the sink has them | keep them |
| the queue of calls | whoever calls puts in | the engine's thread takes out |

What stops, in this order: calls are refused; the round that runs is finished; the calls that were
let in are made; every answer ends with an error, is told and retired; proposers are closed, then
drafters, then the target.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from time import perf_counter
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from parlay.control.choice import Held, as_it_is
from parlay.decoding.logprobs import TokenLogprob, token_logprob
from parlay.decoding.masks import Masked, prepare
from parlay.decoding.round import Round, Timing
from parlay.decoding.span import Span, Target, nothing
from parlay.decoding.verdict import Verdict
from parlay.decoding.verification import verify
from parlay.engine.drafts import Drafts
from parlay.engine.exact.shapes import Inexact
from parlay.engine.faults import Faults, as_parlay
from parlay.engine.plan import Passed, Plan, Planner, Row
from parlay.engine.sequence import Sequence
from parlay.engine.slots import Slots
from parlay.errors import DecodeError, NothingFollows, ParlayError

# Of a long prompt every so many chunks' end is kept, beside the last one.
_CHUNKS_PER_MARK = 8
# Who fetches rows that are ready waits no longer than that.
_WAITED_S = 5e-5

# Before each pass over these spans, exact or not; why its bits may not be those of the class.
Ready = Callable[[Seq[Span], bool], Inexact | None]


class Listener(Protocol):
    """Hears of every round and chooses nothing: counts, traces, figures."""

    def observe(self, rounds: Seq[Round]) -> None:
        """The rounds of one finished pass."""


def nothing_to_do(_spans: Seq[Span], _exact: bool) -> Inexact | None:
    """Nothing has to be seen to."""
    return None


ReadListener = Callable[[Seq[Round]], None]


class Loop:
    """Runs rounds for all answers; one thread calls it."""

    def __init__(
        self,
        target: Target,
        slots: Slots,
        drafts: Drafts,
        planner: Planner,
        *,
        ends: frozenset[int],
        ready: Ready = nothing_to_do,
        after_pass: Callable[[], None] = nothing,
    ) -> None:
        """`after_pass`: called once a pass, when every sink has been given what it brought."""
        self.target = target
        self.drafts = drafts
        self.planner = planner
        self.spoiled: Inexact | None = None  # why no pass is exact now
        self.listeners: list[Listener] = []
        # Told of first tokens that prompts' own passes gave: nothing was bet on them.
        self.readers: list[ReadListener] = []
        self._slots = slots
        self._ends = ends
        self._ready = ready
        self._after_pass = after_pass
        self._waiting: deque[Sequence] = deque()
        self._active: list[Sequence] = []
        self._last: Passed | None = None  # not yet told or learned from
        self._said = False  # whether any sink was given something since `after_pass`
        self._reading = False  # whether a pass was only started
        self._disturbed = True  # whether anything else was computed since the last round
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
        """Queue an answer; it starts as soon as a slot is free."""
        self._waiting.append(seq)

    def step(self) -> None:
        """One round for every answer that decodes, and a few passes over prompts."""
        self._let_go()
        self._admit()
        self._make_room()
        self._pass_on()  # should answers have ended since the last pass
        for sequences in self.planner.groups(self._active):
            self._round([seq for seq in sequences if not seq.done])
            self._retire()
            self._pass_on()

    def disturb(self) -> None:
        """Somebody else may have computed something between two rounds."""
        self._disturbed = True

    def fail_all(self, error: ParlayError) -> None:
        """End everything, for instance when the engine closes."""
        for seq in (*self._waiting, *self._active):
            seq.finish_early("error", error)
        self._leave_queue()
        self._retire()
        self._pass_on()

    def tidy(self, called: Callable[[], bool]) -> None:
        """Nothing is asked for: time for what would make the next one wait, until one calls."""
        if not called():
            self._slots.tidy()

    def _let_go(self) -> None:
        """Whoever was taken back."""
        gone = [seq for seq in (*self._waiting, *self._active) if seq.cancelled]
        for seq in gone:
            seq.finish_early("cancelled")
        if gone:
            self._leave_queue()
            self._retire()

    def _leave_queue(self) -> None:
        for seq in [seq for seq in self._waiting if seq.done]:
            self._waiting.remove(seq)
            seq.retire()
            self._said = True

    def _admit(self) -> None:
        """Whoever waits, as far as there are slots."""
        while self._waiting:
            seq = self._waiting[0]
            firm = self.planner.is_exact([seq])
            try:
                place = self._slots.take(seq.request.prompt, seq.request.owner, firm=firm)
            except Exception as error:  # it cannot be given a slot: it ends, the others go on
                self._faults.tell("an answer could not begin", error)
                seq.finish_early("error", as_parlay(error))
                self._leave_queue()
                continue
            if place is None:
                break
            self._waiting.popleft()
            self._active.append(seq)  # before anything can fail: it has a slot to give back
            seq.seq_id, seq.n_cached, seq.n_firm = place
            seq.n_reused = seq.n_cached
            with self._alone(seq):
                self._begin(seq, firm)
            if seq.done:
                self._retire()
        self.drafts.crowded = bool(self._waiting)

    def _begin(self, seq: Sequence, firm: bool) -> None:
        """It has a slot, with what that still holds of its prompt."""
        if seq.n_reused:  # an earlier turn ends here: the last message can be asked again or edited
            n_new = len(seq.request.prompt) - seq.n_reused
            self.target.mark(seq.seq_id, lasting=n_new > 2 * self.planner.chunk)
        if firm:
            seq.exact_class = self.planner.composition.name
            seq.exact_cost_percent = self.planner.composition.cost_percent
        seq.started = perf_counter()
        self.drafts.open(seq)

    def _retire(self) -> None:
        """Answers that ended give their slots back, once all they said was told and counted."""
        done = [seq for seq in self._active if seq.done]
        if done:
            self._catch_up()
        for seq in done:
            self._active.remove(seq)
            self._slots.release(seq.seq_id, seq.tokens[: seq.n_cached], seq.n_firm)
            n_read = len(seq.request.prompt) - seq.n_reused
            if seq.first_token is not None and n_read >= self.planner.chunk:
                self._slots.copying.saw_reading(n_read, seq.first_token - seq.started)
            seq.retire()
            self._said = True
            self.drafts.finish(seq)

    def _make_room(self) -> None:
        """A full context ends the answer, or slides: the oldest half after the prompt goes."""
        fits = self.target.context_size - self.planner.composition.floor
        for seq in [seq for seq in self._active if seq.n_cached > fits and seq.n_pending == 1]:
            if not self.planner.is_full(seq):
                continue
            with self._alone(seq):
                if seq.request.context_full == "stop":
                    seq.finish_early("length")
                else:
                    self._slide(seq)
        self._retire()

    def _slide(self, seq: Sequence) -> None:
        self._catch_up()  # of its last round, which was at another place
        size = self.target.context_size
        seq.spoil(Inexact.SLIDE)
        keep = min(len(seq.request.prompt), size // 2)
        discard = max(1, (size - keep) // 2)
        if self.target.can_shift:
            self.target.shift(seq.seq_id, keep, discard)
            seq.n_cached -= discard
        else:  # what is left after the gap is read again, as a prompt is
            seq.n_cached = self._slots.keep(seq.seq_id, keep)
        self.drafts.cut(seq.seq_id, keep, discard)
        del seq.tokens[keep : keep + discard]
        seq.n_firm = min(seq.n_firm, keep)
        self._disturbed = True

    # -- one pass -------------------------------------------------------------

    def _round(self, sequences: Seq[Sequence], *, drafting: bool = True) -> None:
        """Draft, verify, commit, cut back: one pass of the target, any number of answers."""
        if not sequences:
            return
        decoding = [seq for seq in sequences if seq.n_pending == 1]
        if self._reading and decoding:  # a round must not be charged with what is still being read
            self.target.settle()
            self._reading = False
        started = perf_counter()
        plan = self._plan(sequences, decoding, drafting)
        planned = perf_counter()
        self._disturbed = not decoding
        self.drafts.before_pass(sequences)
        try:
            unready = self._ready(plan.spans, plan.exact)  # who compares bits makes own passes
            launched = perf_counter()
            self.target.start(plan.spans)
            waits = self.target.steady or not plan.gives_logits
            beside_s = self._beside(plan) if waits else 0.0
            verify_s, logits = self._fetch(plan, launched, beside_s)
        except Exception as error:
            self._recover(plan.rows, error)
            return
        finally:
            self.planner.take_back(plan.spans)
        settled = self._settle_all(plan, logits)
        elapsed = perf_counter() - launched
        timing = Timing(planned - started, verify_s, elapsed - verify_s)
        self._last = Passed(plan, settled, timing, self.spoiled or unready)
        # A first token is waited for: the next pass has a new shape, and takes long to be launched.
        if plan.reads_prompt or not self.target.steady:
            self._catch_up()

    def _plan(self, sequences: Seq[Sequence], decoding: Seq[Sequence], drafting: bool) -> Plan:
        planner, drafts = self.planner, self.drafts
        exact = planner.is_exact(sequences)
        width: Callable[[int], int] = as_it_is
        drafted = drafts.none(decoding)
        if drafting and decoding:
            frame = planner.frame(decoding, exact)
            drafted, width = drafts.make(
                decoding, frame, equal=planner.equal(exact), shape_is_new=self._disturbed
            )
        beside = any(seq.n_pending == 1 for seq in self._active)
        return planner.plan(sequences, drafted, width, beside=beside)

    def _fetch(
        self, plan: Plan, launched: float, beside_s: float
    ) -> tuple[float, dict[int, NDArray[np.float32]]]:
        """The seconds of a pass, and its logits by slot; prompts are read on while others go on.

        If the target still computes when everything beside it is done, it has computed since its
        launch. Else nobody knows when it was ready, and what was done beside it is not its time.
        """
        if not plan.gives_logits:
            self._reading = True
            return perf_counter() - launched - beside_s, {}
        asked = perf_counter()
        rows = self.target.fetch(plan.spans)
        fetched = perf_counter()
        waited = fetched - asked > _WAITED_S
        found = {span.seq_id: p for span, p in zip(plan.spans, rows, strict=True)}
        return fetched - launched - (0.0 if waited else beside_s), found

    def _beside(self, plan: Plan) -> float:
        """While the target computes: all that the next pass may depend on and this one did not.
        What fails here fails no pass. Returns the seconds that it took."""
        started = perf_counter()
        self._catch_up()
        self._pass_on()
        n = len(plan.rows)
        for row in plan.rows:
            seq, draft = row.seq, row.drafted.draft.tokens
            try:
                self.drafts.beside(seq, draft, n)
                if seq.constraint is not None and row.decodes:
                    prepare(seq.constraint, draft, seq.request.sampling)
            except Exception as error:  # of one text: if it cannot go on it ends when it is settled
                self._faults.tell("what is done beside a pass failed", error)
        if self.target.steady:
            with self._faults.told("a search beside a pass failed"):
                self.drafts.search_beside([(r.seq, r.drafted) for r in plan.rows if r.decodes])
        elif plan.reads_prompt:  # a CPU read it before this
            for row in plan.rows:
                row.seq.outside_s += (perf_counter() - started) / n
        return perf_counter() - started

    # -- what a pass brought --------------------------------------------------

    def _settle_all(
        self, plan: Plan, logits: dict[int, NDArray[np.float32]]
    ) -> list[tuple[Row, Verdict]]:
        settled = []
        for row in plan.rows:
            seq = row.seq
            with self._alone(seq):
                if row.span.n_logits:
                    settled.append((row, self._settle(row, logits[seq.seq_id])))
                if not row.decodes:
                    seq.n_cached = self.target.length(seq.seq_id)
                    self._mark(row)
        return settled

    def _settle(self, row: Row, p: NDArray[np.float32]) -> Verdict:
        """Verify one draft, commit what holds, and cut the cache back to all but the last token."""
        seq, draft = row.seq, row.drafted.draft
        request, held = seq.request, seq.constraint
        p = p[: 1 + len(draft.tokens)]  # what follows is padding
        rows = p if held is None else Masked(p, held, draft.tokens, request.sampling)
        verdict = verify(draft, rows, request.sampling, seq.tokens, seq.n_generated, self._ends)
        if held is not None:
            held.accept(verdict.tokens)
        rejected = tuple(draft.tokens[verdict.n_accepted : verdict.n_drafted])
        scores = [] if request.logprobs is None else _scored(p, verdict, request.logprobs)
        taken = verdict.first(seq.commit(verdict, draft.proposer, scores, rejected))
        keep = len(seq.tokens) - 1
        if keep < row.span.start + len(row.span.tokens):
            self.target.truncate(seq.seq_id, keep)
        if self.target.length(seq.seq_id) != keep:
            raise DecodeError(
                f"the cache holds {self.target.length(seq.seq_id)} tokens, not {keep}", code=-1
            )
        seq.n_cached = keep
        seq.held = Held(taken.n_drafted, taken.n_accepted, len(taken.tokens))
        return taken

    def _mark(self, row: Row) -> None:
        """A prompt is read but for its last pass: asked again it goes on from here. A long one is
        marked on the way too, for edits further back."""
        seq, chunk = row.seq, self.planner.chunk
        if seq.n_pending <= 1 or seq.n_cached - seq.n_reused < chunk:
            return
        far = _CHUNKS_PER_MARK * chunk
        lasting = seq.n_cached // far > row.span.start // far
        exact = self.planner.is_exact([seq])
        if lasting or self.planner.next_part(seq, exact)[0] == seq.n_pending:
            self.target.mark(seq.seq_id, lasting=lasting)

    # -- telling and learning -------------------------------------------------

    def _catch_up(self) -> None:
        """Tell what the last pass said, and learn from it."""
        passed, self._last = self._last, None
        if passed is None:
            return
        for row in passed.plan.rows:
            self._tell(row.seq)
        with self._faults.told("a round could not be counted"):
            self._learn(passed)

    def _tell(self, seq: Sequence) -> None:
        """A text that cannot be read ends its answer alone; a pass may be under way, so its cache
        stays as it is."""
        self._said = True
        try:
            seq.tell()
        except Exception as error:
            self._faults.tell("an answer failed", error)
            seq.finish_early("error", as_parlay(error))

    def _learn(self, passed: Passed) -> None:
        lost = self.planner.lost(passed)
        for row in passed.plan.rows:
            self.planner.firm_up(row, exact=lost is None)
            if lost is not None:
                row.seq.spoil(lost)
        decoded: list[Round] = []
        first: list[Round] = []
        for row, found in passed.rounds():
            found.exact = lost is None
            row.seq.held = None
            row.seq.counts.observe(found)
            if row.decodes:
                row.seq.rounds.append(found)
            (decoded if row.decodes else first).append(found)
        if decoded:
            self.drafts.observe(decoded)
        hear = [each.observe for each in self.listeners] if decoded else []
        for observe in hear:
            with self._faults.told("somebody failed to observe a round"):
                observe(decoded)
        for read in self.readers if first else ():
            with self._faults.told("a first token was not counted"):
                read(first)

    def _pass_on(self) -> None:
        """Every sink has been given all there is."""
        if self._said:
            self._said = False
            with self._faults.told("what was said could not be passed on"):
                self._after_pass()

    # -- what fails -----------------------------------------------------------

    def _recover(self, rows: Seq[Row], error: Exception) -> None:
        """A pass broke: each answer goes on alone and without a draft, and ends if that breaks too.
        What cannot be cut out of a cache is read again, as a prompt is."""
        if not isinstance(error, ParlayError):
            self._faults.tell("a round failed", error)
        self._disturbed = True
        for row in rows:
            if row.seq.done:
                continue
            with self._alone(row.seq):
                if len(rows) == 1 and not row.drafted.draft.tokens:
                    raise error
                row.seq.n_cached = self._slots.keep(row.seq.seq_id, row.span.start)
                if row.seq.n_cached != row.span.start:
                    row.seq.spoil(Inexact.RECOVERY)
                self._round([row.seq], drafting=False)

    @contextmanager
    def _alone(self, seq: Sequence) -> Iterator[None]:
        """Whatever fails in here ends this answer only, with its reason."""
        try:
            yield
        except Exception as error:
            self.target.clear(seq.seq_id)
            seq.n_cached = 0
            if isinstance(error, NothingFollows) and seq.may_end:
                seq.finish_early("stop")
                return
            if not isinstance(error, ParlayError):
                self._faults.tell("an answer failed", error)
            seq.finish_early("error", as_parlay(error))


def _scored(p: NDArray[np.float32], verdict: Verdict, n_top: int) -> list[TokenLogprob]:
    return [token_logprob(p[j], token, n_top) for j, token in enumerate(verdict.tokens)]
