"""Runs a controller over recordings and a cost table: what it would have made, without a model.

Knows recordings, prices and the controller's seam; nothing of llama.cpp. Deterministic. It charges
what the runtime pays: changed shapes, passes cut in parts or padded lest they are, drafts that are
not taken back for nothing, the drafter's catching up, its early stops.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from parlay.control.controller import Choice, Controller, Listener, View
from parlay.control.prices.both import Both
from parlay.control.prices.cost import CostTable
from parlay.control.prices.cutting import APART, Cutting, PassPart, seconds
from parlay.control.prices.drafter_cost import DrafterCost
from parlay.control.prices.packing import padded
from parlay.decoding.draft import Draft, Look, Ready, Shown
from parlay.decoding.round import Fallback, Round, Timing
from parlay.proposers.prediction import PREDICTION
from parlay.replay.recording import Recording
from parlay.replay.replayed_look import ReplayedLook
from parlay.replay.searching import Place, SearchCost, Searching

MAX_WINDOW = 64
# The fewest and the most rows that a pass over one answer may have at a position of it.
RowsAt = Callable[[Recording, int], tuple[int, int]]
FREE = frozenset({"ngram", "suffix", PREDICTION})


@dataclass(frozen=True, slots=True)
class ReplayOutcome:
    """What some rounds came to."""

    n_tokens: int
    seconds: float
    n_rounds: int = 0

    @property
    def tokens_per_second(self) -> float:
        return self.n_tokens / self.seconds


def total(outcomes: Sequence[ReplayOutcome]) -> ReplayOutcome:
    """Several outcomes one after the other."""
    return ReplayOutcome(
        sum(o.n_tokens for o in outcomes),
        sum(o.seconds for o in outcomes),
        sum(o.n_rounds for o in outcomes),
    )


@dataclass(slots=True)
class _Sequence:
    """One answer being replayed in a slot."""

    recording: Recording
    drafts: dict[str, list[Draft]]
    seq_id: int
    position: int = 0
    n_missing: int = 0  # tokens the drafter has not read yet
    n_ready: int = 0  # tokens that are drafted already
    n_ahead: int = 0  # tokens drafted beside the last pass, of use or not
    ahead_s: float = 0.0  # what those took
    wait_s: float = 0.0  # until the drafter's pass under way has ended
    looking: ReplayedLook | None = None  # drafts that are compared with the text

    @property
    def n_left(self) -> int:
        return self.recording.n_tokens - self.position

    def seen(self) -> Sequence[Look] | None:
        """What came of the last looks, told once."""
        if self.looking is None or not self.looking.is_over(self.position):
            return None
        found, self.looking = self.looking.found, None
        return found

    @property
    def is_looked_at(self) -> bool:
        """Whether a drafter is at it beside passes."""
        return self.looking is not None and self.looking.left_s > 0.0

    @property
    def max_window(self) -> int:
        # Only an answer that ran into its limit is known to end there.
        limited = self.recording.finish_reason == "length"
        return min(MAX_WINDOW, self.n_left - 1) if limited else MAX_WINDOW


@dataclass(frozen=True, slots=True)
class _Bet:
    """A draft as it came about: what goes into the pass, and what the drafter did for it."""

    proposer: str
    confidence: tuple[float, ...]
    n_accepted: int
    n_made: int = 0  # tokens a draft model made, those not verified included
    n_ready: int = 0  # of them, those that were there before
    look: bool = False  # none of them goes into the pass, now or later


@dataclass(slots=True)
class Replay:
    """Recordings ready to be run again and again."""

    recordings: Sequence[Recording]
    proposers: tuple[str, ...]
    reads_along: bool = False  # whether a draft model has read a prompt when the target has
    _drafts: dict[int, dict[str, list[Draft]]] = field(default_factory=dict)

    def run(
        self,
        controller: Controller,
        costs: CostTable,
        listeners: Sequence[Listener] = (),
        search: SearchCost | None = None,
        rows_at: RowsAt | None = None,
    ) -> list[ReplayOutcome]:
        """One answer after the other; the controller keeps what it learns. `search`: what looking
        for free drafts takes; nothing, unless it is given. `rows_at`: of exact passes."""
        world = _World(costs, listeners, search=search, rows_at=rows_at)
        return [world.play(controller, [self._start(i, 0)], self.proposers) for i in self._order()]

    def run_together(
        self,
        controller: Controller,
        costs: CostTable,
        n_slots: int,
        cutting: Cutting = APART,
        search: SearchCost | None = None,
        listeners: Sequence[Listener] = (),
    ) -> ReplayOutcome:
        """Several answers at a time in one pass; the next one starts when a slot is free."""
        waiting = deque(self._order())
        world = _World(costs, listeners, cutting, n_slots, search)
        slots = self._fill(range(n_slots), waiting)
        outcomes = []
        while slots:
            crowded = len(slots) == n_slots and bool(waiting)
            outcomes.append(world.step(controller, slots, self.proposers, crowded))
            freed = [seq.seq_id for seq in slots if not seq.n_left]
            slots = [seq for seq in slots if seq.n_left]
            slots += self._fill(freed, waiting)
            slots.sort(key=lambda seq: seq.seq_id)
        return total(outcomes)

    def _fill(self, free: Iterable[int], waiting: deque[int]) -> list[_Sequence]:
        return [self._start(waiting.popleft(), slot) for slot in free if waiting]

    def _order(self) -> Iterator[int]:
        return iter(range(len(self.recordings)))

    def _start(self, index: int, seq_id: int) -> _Sequence:
        recording = self.recordings[index]
        if index not in self._drafts:
            self._drafts[index] = _free_drafts(recording, self.proposers)
        n_missing = 1 if self.reads_along else recording.n_prompt + 1
        return _Sequence(recording, self._drafts[index], seq_id, n_missing=n_missing)


def _free_drafts(recording: Recording, proposers: Sequence[str]) -> dict[str, list[Draft]]:
    return {
        name: [Draft((0,) * len(o.confidence), name, o.confidence) for o in recording.offers[name]]
        for name in proposers
        if name in FREE
    }


class _World:
    """The machine: its prices, the shape of the last pass, and a clock."""

    def __init__(
        self,
        costs: CostTable,
        listeners: Sequence[Listener] = (),
        cutting: Cutting = APART,
        n_sequences: int = 1,
        search: SearchCost | None = None,
        rows_at: RowsAt | None = None,
    ) -> None:
        self._rows_at = rows_at
        self._costs = costs
        self._searching = Searching(search)
        self._listeners = listeners
        self._cutting = cutting
        self._last = PassPart(n_sequences, n_sequences)
        self._settled = True

    def play(
        self, controller: Controller, slots: Sequence[_Sequence], proposers: tuple[str, ...]
    ) -> ReplayOutcome:
        """Run until every sequence has ended."""
        outcomes = []
        while all(seq.n_left for seq in slots):
            outcomes.append(self.step(controller, slots, proposers))
        return total(outcomes)

    def step(
        self,
        controller: Controller,
        slots: Sequence[_Sequence],
        proposers: tuple[str, ...],
        crowded: bool = False,
    ) -> ReplayOutcome:
        """One round of every sequence, in one pass."""
        if len(slots) == 1 and not slots[0].position:
            controller.notice()  # as the runtime does where a drafter may be looked at
            self._settled, self._last = False, PassPart(0, 0)  # a prompt was read
        n_due = self._searching.due(controller, len(slots))
        views = self._views(slots, proposers, crowded, n_due)
        again = controller.again(views[0]) if n_due == len(slots) == 1 else None
        choices = controller.choose(views) if again is None else [again]
        bets = [
            _look(seq, choice, self._costs.drafter) if choice.look else _bet(seq, choice)
            for seq, choice in zip(slots, choices, strict=True)
        ]
        made = {seq.seq_id: 1 + len(bet.confidence) for seq, bet in zip(slots, bets, strict=True)}
        n_context = max(seq.recording.n_prompt + seq.position for seq in slots)
        laid_out = self._laid_out(made, n_context)
        if len(slots) == 1:
            least = views[0].floor
            laid_out = {id_: max(least, choices[0].width(n)) for id_, n in laid_out.items()}
        rows, both = sum(laid_out.values()), self._beside(slots, choices, bets)
        draft_s = self._searching.seconds(n_due) + self._draft_s(slots, bets)
        pass_s = self._pass_s(self._cutting.parts(laid_out), n_context)
        slowdown = 1.0 if both is None else both.slowdown[rows]
        timing = Timing(draft_s, pass_s * slowdown, self._undo_s(bets))
        shape = _Shape(len(slots), rows, rows - sum(made.values()), both is not None)
        rounds = [
            _round(seq, choice, bet, timing, shape, view.searched)
            for seq, choice, bet, view in zip(slots, choices, bets, views, strict=True)
        ]
        self._searching.glance(controller, [_place(seq) for seq in slots])
        for seq, choice, bet, r in zip(slots, choices, bets, rounds, strict=True):
            _look_ahead(seq, choice, bet, r, self._costs.drafter, pass_s)
            _advance(seq, bet, r)
        for hears in (controller, *self._listeners):
            hears.observe(rounds)
        for seq, bet in zip(slots, bets, strict=True):
            self._look_on(controller, seq, bet, pass_s)
        return ReplayOutcome(sum(r.n_generated for r in rounds), timing.total_s, 1)

    def _views(
        self, slots: Sequence[_Sequence], proposers: tuple[str, ...], crowded: bool, n_due: int
    ) -> list[View]:
        """As the controller sees them; so many of them are searched."""
        shown = [self._searching.shown(seq.seq_id) for seq in slots[:n_due]]
        views = [
            _view(seq, proposers, i < n_due, crowded, shown[i] if i < n_due else ())
            for i, seq in enumerate(slots)
        ]
        if n_due:  # whoever is not asked has nothing to say in this round
            views[n_due:] = [view.silenced(FREE) for view in views[n_due:]]
        if (rows_at := self._rows_at) is not None:
            views = [_held(view, seq, rows_at) for view, seq in zip(views, slots, strict=True)]
        return views

    def _laid_out(self, rows: Mapping[int, int], n_context: int) -> Mapping[int, int]:
        """Rows by sequence, with the padding that the runtime would add."""
        if len(rows) == 1:
            return rows
        spare = set(range(max(rows))) - rows.keys()
        price = partial(seconds, costs=self._costs, n_context=n_context)
        return padded(rows, (), spare, self._cutting, price)

    def _pass_s(self, parts: Sequence[PassPart], n_context: int) -> float:
        """One part after the other: each may change the shape, or settle into it."""
        total_s = 0.0
        for part in parts:
            curve, changed = self._costs.curve(n_context, part.n_sequences), part != self._last
            settling_s = 0.0 if changed or self._settled else curve.settling_s
            total_s += curve.of(part.n_rows, changed) + settling_s
            self._settled, self._last = not changed, part
        return total_s

    def _undo_s(self, bets: Sequence[_Bet]) -> float:
        """Drafts that are not taken back for nothing; what held of them is read again."""
        undoing = self._costs.undoing
        paid = [bet for bet in bets if undoing.is_paid(len(bet.confidence), bet.n_accepted)]
        if paid:
            self._settled, self._last = False, PassPart(0, 0)
        return len(paid) * undoing.seconds

    def _beside(
        self, slots: Sequence[_Sequence], choices: Sequence[Choice], bets: Sequence[_Bet]
    ) -> Both | None:
        """The prices of both at once, if a drafter goes on beside this pass."""
        drafter = self._costs.drafter
        going = any(c.ahead and bet.n_made for c, bet in zip(choices, bets, strict=True))
        going = going or any(seq.is_looked_at for seq in slots)
        return drafter.both if drafter is not None and going else None

    def _look_on(self, controller: Controller, seq: _Sequence, bet: _Bet, pass_s: float) -> None:
        """A drafter that looks beside passes goes on; whoever bets calls it back."""
        looking = seq.looking
        if looking is None or not looking.beside:
            return
        looking.left_s -= pass_s
        if bet.n_made:
            looking.end()
        elif looking.is_seen(seq.position) and seq.n_left:
            looking.go_on(seq.recording, seq.position)
            if looking.is_over(seq.position):
                seq.looking = None
                choice = controller.hear(seq.seq_id, looking.found, seq.position)
                if choice is not None:
                    _look(seq, choice, self._costs.drafter)

    def _draft_s(self, slots: Sequence[_Sequence], bets: Sequence[_Bet]) -> float:
        """The drafter goes on while any sequence does; those that stopped cost no more rows."""
        asked = [(seq, bet) for seq, bet in zip(slots, bets, strict=True) if bet.n_made]
        drafter = self._costs.drafter
        if not asked or drafter is None:
            return 0.0
        lacking = [(seq, bet) for seq, bet in asked if bet.n_made > bet.n_ready]
        if not lacking:
            return 0.0  # all of it was ready, and nothing is waited for
        behind = [seq.n_missing for seq, bet in lacking if not bet.n_ready]
        wait_s = max(seq.wait_s for seq, _ in lacking)
        catch_up = drafter.catch_up_s(sum(behind), len(behind)) if behind else 0.0
        steps = [_n_steps(seq, bet) for seq, bet in lacking]
        rows = (sum(n > i for n in steps) for i in range(max(steps)))
        return wait_s + catch_up + sum(drafter.step_s(n) for n in rows)


def _n_steps(seq: _Sequence, bet: _Bet) -> int:
    """Tokens that are waited for one by one: not what is ready, nor what catching up or the token
    under way brings."""
    if not bet.n_ready:
        return bet.n_made - 1
    return bet.n_made - bet.n_ready - bool(seq.wait_s)


def _place(seq: _Sequence) -> Place:
    offers = {name: seq.recording.offers[name][seq.position] for name in seq.drafts}
    return Place(seq.seq_id, range(1, seq.position + 2), offers)


def _view(
    seq: _Sequence,
    proposers: tuple[str, ...],
    searched: bool,
    crowded: bool,
    shown: Sequence[Shown],
) -> View:
    most = seq.max_window
    offers = {name: _first(drafts[seq.position], most) for name, drafts in seq.drafts.items()}
    return View(
        seq_id=seq.seq_id,
        n_context=seq.recording.n_prompt + seq.position,
        n_prompt=seq.recording.n_prompt,
        n_generated=seq.position + 1,
        max_window=most,
        proposers=proposers,
        offers=offers if most and searched else {},
        n_remaining=seq.n_left,
        searched=searched,
        crowded=crowded,
        ready=Ready(seq.n_ready, seq.n_ahead, seq.ahead_s),
        pads=True,
        looks=seq.seen(),
        shown=shown,
        unread={name: seq.n_missing for name in proposers if name not in FREE},
    )


def _held(view: View, seq: _Sequence, rows_at: RowsAt) -> View:
    """As an exact pass leaves it: no draft reaches where rows of another kind begin."""
    least, most = bounds = rows_at(seq.recording, seq.position)
    n, n_positions = 1, seq.recording.n_tokens
    while n < most and rows_at(seq.recording, min(seq.position + n, n_positions - 1)) == bounds:
        n += 1
    window = min(view.max_window, n - 1)
    offers = {name: _first(draft, window) for name, draft in view.offers.items()}
    return replace(view, max_window=window, floor=least, pads=False, offers=offers)


def _first(draft: Draft, n: int) -> Draft:
    if len(draft.tokens) <= n:
        return draft
    return Draft(draft.tokens[:n], draft.proposer, draft.confidence[:n])


def _look(seq: _Sequence, choice: Choice, drafter: DrafterCost | None) -> _Bet:
    """A draft that is compared with the text: none of it goes into the pass."""
    window = choice.window or choice.next_window
    seq.looking = ReplayedLook(choice.proposer, window, not choice.window, drafter)
    drafted = seq.looking.begin(seq.recording, seq.position, seq.n_missing)
    if not choice.window:
        seq.n_missing = 0
        return _Bet("none", (), 0)
    return _Bet(choice.proposer, (), 0, len(drafted), look=True)


def _bet(seq: _Sequence, choice: Choice) -> _Bet:
    """What comes of a choice: a free draft is cut, a model's is made token by token."""
    if choice.window == 0:
        return _Bet("none", (), 0)
    offer = seq.recording.offers[choice.proposer][seq.position]
    drafted = offer.confidence[: choice.window]
    if choice.proposer in FREE:
        return _Bet(choice.proposer, drafted, min(len(drafted), offer.n_accepted))
    n_ready = min(seq.n_ready, len(drafted))
    n_made = max(1, n_ready)
    while n_made < len(drafted) and (
        choice.keep_going is None or choice.keep_going(drafted[:n_made])
    ):
        n_made += 1
    n = n_made if choice.verify is None else choice.verify(drafted[:n_made])
    return _Bet(choice.proposer, drafted[:n], min(n, offer.n_accepted), n_made, n_ready)


@dataclass(frozen=True, slots=True)
class _Shape:
    """A pass as its rounds tell of it."""

    n_sequences: int
    n_rows: int
    n_padding: int
    beside: bool


def _round(
    seq: _Sequence, choice: Choice, bet: _Bet, timing: Timing, shape: _Shape, searched: bool
) -> Round:
    n = len(bet.confidence)
    n_generated = min(bet.n_accepted + 1, seq.n_left)
    return Round(
        seq_id=seq.seq_id,
        proposer=bet.proposer if n else "none",
        window=choice.window,
        n_drafted=n,
        n_accepted=bet.n_accepted,
        n_generated=n_generated,
        confidence=bet.confidence,
        n_rows=n + 1,
        n_sequences=shape.n_sequences,
        n_pass_rows=shape.n_rows,
        n_context=seq.recording.n_prompt + seq.position,
        timing=timing,
        fallback=None if n else choice.fallback or Fallback.NO_DRAFT,
        n_dropped=bet.n_made - n if bet.n_made else 0,
        n_padding=shape.n_padding,
        n_drafted_ahead=seq.n_ahead,
        drafted_ahead_s=seq.ahead_s,
        n_ahead=min(n, bet.n_ready),
        beside=shape.beside,
        agreed=_agreed(seq, n_generated) if searched else {},
        expected_gain=choice.expected_gain,
        reason=choice.reason,
        position=seq.position + 1,
    )


def _agreed(seq: _Sequence, n_generated: int) -> dict[str, int]:
    offers = seq.recording.offers
    return {name: min(offers[name][seq.position].n_accepted, n_generated) for name in seq.drafts}


def _look_ahead(
    seq: _Sequence,
    choice: Choice,
    bet: _Bet,
    r: Round,
    drafter: DrafterCost | None,
    pass_s: float,
) -> None:
    """What is there for the next round: a draft goes on as the one recorded there does, by as many
    tokens as the next one may have. One that is under way when the pass ends is waited for, unless
    all that is wanted is there."""
    both = drafter.both if drafter is not None and r.beside else None
    seq.n_ready = seq.n_ahead = 0
    seq.ahead_s = seq.wait_s = 0.0
    n = len(bet.confidence)
    if both is not None and drafter is not None and bet.n_made:
        most = max(0, n + 1 + choice.next_window - bet.n_made)
        n_beside = both.n_beside(r.n_pass_rows, pass_s)
        seq.n_ahead = min(most, int(n_beside))
        seq.ahead_s = seq.n_ahead * both.token_s[r.n_pass_rows]
        if n_beside < most:
            seq.wait_s = (1.0 - n_beside % 1.0) * drafter.step_s()
    if bet.n_made and r.n_accepted == n and not bet.look:
        guessed = _guesses(seq, bet.proposer, seq.position + n)
        seq.n_ready = max(0, bet.n_made - n + seq.n_ahead - 1) if guessed else 0


def _guesses(seq: _Sequence, proposer: str, position: int) -> bool:
    """Whether a draft model has the target's own token at a position for its next one."""
    offers = seq.recording.offers[proposer]
    return position < len(offers) and offers[position].n_accepted > 0


def _advance(seq: _Sequence, bet: _Bet, r: Round) -> None:
    seq.position += r.n_generated
    if not bet.n_made:
        seq.n_missing += r.n_generated
    else:
        # Its own last token is the one it never read; a rejected draft leaves only the target's.
        seq.n_missing = 2 if bet.n_accepted == bet.n_made and not r.beside else 1
