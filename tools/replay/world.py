"""A machine on paper: it plays recorded answers with a controller, and charges what passes take.

Knows recordings, prices and the three methods of a controller; nothing of llama.cpp. Deterministic.
It charges what the engine pays: changes of shape, passes cut in parts or padded lest they are,
drafts that are not taken back for nothing, a draft model's reading and its steps. Where changes of
shape cost something, on a GPU, a pass is observed beside the next one, when that is chosen for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

from parlay.control.choice import Choice, Choices, Controller, Held, View
from parlay.control.prices.cost import CostTable
from parlay.control.prices.curve import MAX_ROWS
from parlay.control.prices.cutting import APART, Cutting, PassPart, padded, seconds
from parlay.decoding.draft import Draft
from parlay.decoding.round import Fallback, Round, Timing
from tools.replay.recording import Recording

MAX_WINDOW = 64
FREE = frozenset({"ngram", "suffix", "prediction"})
_NUMBERS = count(1)


@dataclass(frozen=True, slots=True)
class SearchCost:
    """What searching for one answer's free drafts takes before a pass."""

    each_s: float
    beside: bool = False  # a device computes by itself: some who are not searched are meanwhile


@dataclass(slots=True)
class Answer:
    """One recording being played in a slot."""

    recording: Recording
    seq_id: int
    number: int
    position: int = 0
    n_unread: int = 1  # tokens that a draft model has to read, the last one included
    search: bool = True
    held: Held | None = None

    @property
    def n_left(self) -> int:
        return self.recording.n_tokens - self.position

    @property
    def max_window(self) -> int:
        # Only an answer that ran into its limit is known to end there.
        limited = self.recording.finish_reason == "length"
        return min(MAX_WINDOW, self.n_left - 1) if limited else MAX_WINDOW

    def offer(self, name: str) -> Draft:
        sure = self.recording.offers[name][self.position].confidence[: self.max_window]
        return Draft((0,) * len(sure), name, sure)

    def n_right(self, name: str) -> int:
        return self.recording.offers[name][self.position].n_accepted


@dataclass(slots=True)
class Drafted:
    """What came of a choice before the pass."""

    proposer: str = "none"
    confidence: tuple[float, ...] = ()
    n_made: int = 0  # by a draft model, what is not verified included
    n_right: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What some passes came to."""

    n_tokens: int
    seconds: float


class World:
    """The machine: its prices, the shape of the last pass, and what is still to be observed."""

    def __init__(
        self,
        costs: CostTable,
        proposers: tuple[str, ...],
        *,
        cutting: Cutting = APART,
        search: SearchCost | None = None,
        floor: int = 1,
    ) -> None:
        """`search` None: searching costs nothing. `floor`: rows of each answer at least."""
        self.costs, self.cutting, self.search, self.floor = costs, cutting, search, floor
        self.proposers = proposers
        self.models = tuple(name for name in proposers if name not in FREE)
        self.lags = next(iter(costs.measured.values())).prices_change
        self.last, self.settled, self.is_new = PassPart(0, 0), False, True
        self.unobserved: list[Round] = []
        self.n_passes = 0

    def play(self, controller: Controller, recordings: Iterable[Recording]) -> list[Outcome]:
        """One answer after the other."""
        return [self.burst(controller, [recording]) for recording in recordings]

    def burst(
        self, controller: Controller, recordings: Sequence[Recording], n_slots: int = 0
    ) -> Outcome:
        """Several answers at a time; with fewer slots the next one begins when one is free."""
        n_slots, waiting, total, spent = n_slots or len(recordings), deque(recordings), 0, 0.0
        active: list[Answer] = []
        if n_slots > 1:
            self.last, self.settled = PassPart(n_slots, n_slots), True
        while waiting or active:
            taken = {answer.seq_id for answer in active}
            free = (slot for slot in range(n_slots) if slot not in taken)
            active += [self._begin(waiting.popleft(), slot) for slot in free if waiting]
            active.sort(key=lambda answer: answer.seq_id)
            if len(active) == 1 and not active[0].position:  # a prompt was read
                self.last, self.settled, self.is_new = PassPart(0, 0), False, True
            made = self.step(controller, active, bool(waiting))
            total, spent = total + made.n_tokens, spent + made.seconds
            active = [answer for answer in active if answer.n_left]
        self._observe(controller)
        return Outcome(total, spent)

    def _begin(self, recording: Recording, slot: int) -> Answer:
        return Answer(recording, slot, next(_NUMBERS), n_unread=recording.n_prompt + 1)

    def step(self, controller: Controller, answers: Sequence[Answer], crowded: bool) -> Outcome:
        """One pass with a round of every answer."""
        views = [self._view(answer, crowded) for answer in answers]
        choices = controller.choose(views)
        drafted, draft_s = self._draft(answers, choices)
        if self.search is not None:
            draft_s += self.search.each_s * sum(view.searched for view in views)
        rows = {a.seq_id: 1 + len(d.confidence) for a, d in zip(answers, drafted, strict=True)}
        n_context = max(view.n_context for view in views)
        laid_out = self._laid_out(rows, n_context, choices)
        self.is_new = False
        timing = Timing(draft_s, self._pass_s(laid_out, n_context), self._undo_s(drafted))
        self._observe(controller)
        self.n_passes += 1
        template = Round(
            seq_id=0, proposer="none", window=0, n_drafted=0, n_accepted=0, n_generated=0,
            confidence=(), n_rows=0, n_sequences=len(answers), n_pass_rows=sum(laid_out.values()),
            n_context=0, timing=timing, n_padding=sum(laid_out.values()) - sum(rows.values()),
        )  # fmt: skip
        for i, (answer, choice) in enumerate(zip(answers, choices.each, strict=True)):
            r = self._round(template, answer, choice, drafted[i], views[i], i)
            self.unobserved.append(r)
            answer.search = choice.search or self.search is None
            answer.held = Held(r.n_drafted, r.n_accepted, r.n_generated) if self.lags else None
            answer.position += r.n_generated
            if not drafted[i].n_made:
                answer.n_unread += r.n_generated
            else:  # its own last token is the one that it never read
                answer.n_unread = 2 if r.n_accepted == drafted[i].n_made else 1
        n_tokens = sum(r.n_generated for r in self.unobserved)
        if not self.lags:
            self._observe(controller)
        return Outcome(n_tokens, timing.total_s)

    def _observe(self, controller: Controller) -> None:
        if self.unobserved:
            controller.observe(self.unobserved)
            self.unobserved = []

    def _view(self, answer: Answer, crowded: bool) -> View:
        free = [name for name in self.proposers if name in FREE]
        return View(
            seq_id=answer.seq_id,
            answer=answer.number,
            n_context=answer.recording.n_prompt + answer.position,
            n_generated=answer.position + 1,
            n_remaining=answer.n_left,
            max_window=answer.max_window,
            proposers=self.proposers,
            models=self.models,
            offers={name: answer.offer(name) for name in free} if answer.search else {},
            searched=answer.search,
            held=answer.held,
            unread=dict.fromkeys(self.models, answer.n_unread),
            crowded=crowded,
            floor=self.floor,
            equal=not self.cutting.unified,
            pads=self.floor == 1,
            shape_is_new=self.is_new,
        )

    def _draft(self, answers: Sequence[Answer], choices: Choices) -> tuple[list[Drafted], float]:
        """A free draft is cut, a model's is made token by token; and the seconds that it took."""
        found, by_id, total_s = [Drafted() for _ in answers], {}, 0.0
        for i, (answer, choice) in enumerate(zip(answers, choices.each, strict=True)):
            if choice.window:
                sure = answer.offer(choice.proposer).confidence[: choice.window]
                if choice.proposer in FREE:
                    n_right = min(len(sure), answer.n_right(choice.proposer))
                    found[i] = Drafted(choice.proposer, sure, 0, n_right)
                elif sure:
                    by_id[answer.seq_id] = i, choice.proposer, sure
        for model in self.models:
            own = {id_: each[2] for id_, each in by_id.items() if each[1] == model}
            total_s += self._draft_steps(model, own, answers, choices, found)
        made = {id_: found[i].confidence for id_, (i, *_) in by_id.items()}
        verified = choices.verified(made) if made else {}
        for id_, (i, model, _) in by_id.items():
            n = verified.get(id_, 0)
            found[i] = Drafted(
                model if n else "none",
                made[id_][:n],
                len(made[id_]),
                min(n, answers[i].n_right(model)),
            )
        return found, total_s

    def _draft_steps(
        self,
        model: str,
        sure: Mapping[int, tuple[float, ...]],
        answers: Sequence[Answer],
        choices: Choices,
        found: list[Drafted],
    ) -> float:
        cost = self.costs.cost_of(model)
        if not sure or cost is None:
            return 0.0
        place = {answer.seq_id: i for i, answer in enumerate(answers)}
        total_s = cost.catch_up_s(sum(answers[place[id_]].n_unread for id_ in sure), len(sure))
        made = dict.fromkeys(sure, 1)
        while True:
            drafted = {id_: sure[id_][:n] for id_, n in made.items()}
            going = [id_ for id_ in choices.going(drafted) if made[id_] < len(sure[id_])]
            if not going:
                break
            total_s += cost.step_s(len(going))
            for id_ in going:
                made[id_] += 1
        for id_, confidence in drafted.items():
            found[place[id_]] = Drafted(model, confidence)
        return total_s

    def _laid_out(
        self, rows: Mapping[int, int], n_context: int, choices: Choices
    ) -> Mapping[int, int]:
        """Rows by slot, with the padding that the engine adds."""
        rows = {id_: max(self.floor, n) for id_, n in rows.items()}
        if len(rows) == 1:
            return {id_: max(n, choices.width(n)) for id_, n in rows.items()}
        if self.cutting.unified:
            return rows
        spare = set(range(max(rows))) - rows.keys()
        price = partial(seconds, costs=self.costs, n_context=n_context)
        return padded(rows, (), spare, self.cutting, price)

    def _pass_s(self, rows: Mapping[int, int], n_context: int) -> float:
        """One part after the other: each may change the shape, or settle into it."""
        total_s = 0.0
        for part in self.cutting.parts(rows):
            curve, changed = self.costs.curve(n_context, part.n_sequences), part != self.last
            settling_s = 0.0 if changed or self.settled else curve.settling_s
            total_s += curve.of(min(part.n_rows, MAX_ROWS), changed) + settling_s
            self.settled, self.last = not changed, part
        return total_s

    def _undo_s(self, drafted: Sequence[Drafted]) -> float:
        """Drafts that are not taken back for nothing; what held of them is read again."""
        undoing = self.costs.undoing
        n = sum(undoing.is_paid(len(d.confidence), d.n_right) for d in drafted)
        if n:
            self.settled, self.last = False, PassPart(0, 0)
        return n * undoing.seconds

    def _round(
        self, like: Round, answer: Answer, choice: Choice, made: Drafted, view: View, i: int
    ) -> Round:
        n, n_generated = len(made.confidence), min(made.n_right + 1, answer.n_left)
        every = max(1, like.n_sequences // max(2, like.n_sequences // 4))
        beside = self.search is not None and self.search.beside
        if view.searched or (beside and (self.n_passes + i) % every == 0):
            free = [name for name in self.proposers if name in FREE]
            agreed = {name: min(answer.n_right(name), n_generated) for name in free}
        else:
            agreed = {}
        return replace(
            like,
            seq_id=answer.seq_id,
            answer=answer.number,
            proposer=made.proposer,
            window=choice.window,
            n_drafted=n,
            n_accepted=made.n_right,
            n_generated=n_generated,
            confidence=made.confidence,
            n_rows=1 + n,
            n_context=view.n_context,
            fallback=None if n else choice.fallback or Fallback.NO_DRAFT,
            n_dropped=made.n_made - n if made.n_made else 0,
            agreed=agreed,
            position=answer.position + 1,
        )
