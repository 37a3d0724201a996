"""Bets: for each sequence of a pass, the window the controller sets and the draft that fills it.

Knows proposers and the controller; knows nothing of verification.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from time import perf_counter

from parlay.control.controller import Choice, Controller, Listener, View, plain
from parlay.decoding.draft import NO_DRAFT, Draft
from parlay.decoding.round import Fallback, Round
from parlay.decoding.span import nothing
from parlay.engine.asks import free_ask, model_ask
from parlay.engine.exact.composition import ANY_SHAPE, Frame
from parlay.engine.faults import Faults
from parlay.engine.looking import Looking
from parlay.engine.news import News
from parlay.engine.placed_bet import FAILED, Bet, bet_on
from parlay.engine.sequence import Sequence
from parlay.proposers.glances import WINDOW, Glances, longest
from parlay.proposers.joining import behind, joined, obeying
from parlay.proposers.prediction import PREDICTION
from parlay.proposers.proposer import Ask, Proposer, Worth
from parlay.proposers.skeleton import SKELETON

Watch = Callable[[Seq[Sequence]], None]  # told of the sequences of a pass before it is made
ReadListener = Callable[[Seq[Round]], None]  # told of first tokens that came with a prompt

_NO_OFFERS: Mapping[str, Draft] = {}


@dataclass(frozen=True, slots=True)
class _Quiet:
    """A round that was plain whatever came before it."""

    sequences: list[Sequence]
    frame: Frame
    proposers: Seq[str]  # that were there
    placed: list[Bet]

    def is_for(self, sequences: Seq[Sequence], frame: Frame) -> bool:
        same = self.sequences == list(sequences) and self.frame == frame
        # A last token has no draft whatever is chosen, and says so.
        return same and all(seq.n_remaining > 1 or seq.request.plain for seq in sequences)


class Bets:
    """Asks the controller, then the proposers."""

    def __init__(
        self,
        controller: Controller,
        proposers: Mapping[str, Proposer],
        free: frozenset[str],
        context_size: int,
        max_window: int,
        most_rows: int = 0,
    ) -> None:
        """`max_window` of every sequence; wider where a pass of `most_rows` has room for it."""
        self.controller = controller
        self.listeners: list[Listener] = []  # hear of every round, choose nothing
        self.readers: list[ReadListener] = []  # hear of first tokens that prompts' own passes gave
        self.watches: list[Watch] = []  # are told what every pass is for
        self.proposers = dict(proposers)
        self.absent: dict[str, Fallback] = {}  # proposers that are not there now, and why
        self.crowded = False  # whether others wait for a slot
        self._free = free  # proposers that cost nothing, so that they are asked before choosing
        self._context_size = context_size
        self._max_window = max_window
        self._most_rows = most_rows
        self.learn_last: Callable[[], None] = nothing  # what the last pass showed, if not yet done
        self._quiet: _Quiet | None = None  # the last one that was plain whatever came before it
        self._staked = False  # whether anything was drafted for the last round
        self._hoped: tuple[Sequence, int] | None = None  # and its tokens if all of its draft comes
        self._glances = Glances()
        self._looking = Looking()
        self._faults = Faults()
        self._news = News(self.proposers, self._faults)

    @property
    def named(self) -> list[str]:
        """The proposers that were asked for; others draft from what comes with a request."""
        there = tuple(self.proposers)  # any thread asks, and the worker's changes them
        return sorted(name for name in there if name not in (PREDICTION, SKELETON))

    def before_pass(self, sequences: Seq[Sequence]) -> None:
        """The target is about to read or to decode for these."""
        for watch in self.watches:
            try:
                watch(sequences)
            except Exception as error:
                self._faults.tell("a drafter was not told of a pass", error)

    def learn(self, rounds: Seq[Round]) -> None:
        """The rounds of one finished pass, for the controller."""
        self._observe(self.controller, rounds)

    def tell(self, rounds: Seq[Round]) -> None:
        """The same for all who count, and have no say in the next pass."""
        for listener in self.listeners:
            self._observe(listener, rounds)

    def tell_read(self, rounds: Seq[Round]) -> None:
        """First tokens, each with its prompt: nothing was bet on them, but they count."""
        for reader in self.readers:
            try:
                reader(rounds)
            except Exception as error:
                self._faults.tell("a first token was not counted", error)

    def _observe(self, listener: Listener, rounds: Seq[Round]) -> None:
        """Whoever fails at it ends no answer."""
        try:
            listener.observe(rounds)
        except Exception as error:
            self._faults.tell(f"{type(listener).__name__} failed to observe", error)

    def place(self, sequences: Seq[Sequence], frame: Frame = ANY_SHAPE) -> list[Bet]:
        """One bet per sequence of the coming pass. What breaks here costs bets, never answers."""
        try:
            return self._place(sequences, frame)
        except Exception as error:
            self._faults.tell("betting failed, decoding plainly", error)
            return self.abstain(sequences)

    def abstain(self, sequences: Seq[Sequence]) -> list[Bet]:
        """No bet on a round that must not fail again."""
        return [Bet(plain(Fallback.DRAFT_ERROR), NO_DRAFT) for _ in sequences]

    def _place(self, sequences: Seq[Sequence], frame: Frame) -> list[Bet]:
        """What is weighed depends on what the last pass showed, and so do the bets that were on it.
        Without either a GPU computes while that is learned: this time is speculation's, and is
        taken for a part of the search."""
        if not sequences:
            return []
        if self._staked or not self._rests_on(sequences, frame):
            view = self._held(sequences, frame)
            if view is not None and (again := self._again(sequences[0], view)) is not None:
                return [again]
            self.learn_last()
            if view is not None or not self._rests_on(sequences, frame):
                return self._weigh(sequences, frame, view)
        assert self._quiet is not None
        self._staked = False
        self.controller.due(len(sequences))  # a plain round like an earlier one: no second thought
        return self._quiet.placed

    def _held(self, sequences: Seq[Sequence], frame: Frame) -> View | None:
        """One text, all of whose last draft came, as the controller sees it now."""
        hoped, self._hoped = self._hoped, None
        seq = sequences[0]
        if len(sequences) > 1 or hoped != (seq, seq.n_generated) or seq.n_remaining <= 1:
            return None
        return self._view(seq, 1, frame, True)

    def _again(self, seq: Sequence, view: View) -> Bet | None:
        """The last bet once more: what the last pass showed is learned while a device computes."""
        choice = self.controller.again(view)
        if choice is None:
            return None
        self.controller.due(1)
        bet = bet_on(choice, self._drafts([seq], [view], [choice])[0], view)
        self._remember(seq, bet)
        return bet

    def _remember(self, seq: Sequence, bet: Bet) -> None:
        """A bet on one text alone. If all of its draft comes, the same one may be made again."""
        choice, n_drafted = bet.choice, len(bet.draft.tokens)
        self._staked = n_drafted > 0 or bet.n_dropped > 0
        if seq.constraint is not None:
            return
        if n_drafted and choice.proposer in self._free:
            self._hoped = seq, seq.n_generated + n_drafted + 1

    def _rests_on(self, sequences: Seq[Sequence], frame: Frame) -> bool:
        """Whether the coming round is plain as an earlier one was."""
        kept = self._quiet
        if kept is None or not self._is_quiet(sequences) or kept.proposers != (*self.proposers,):
            return False
        return kept.is_for(sequences, frame)

    def _weigh(self, sequences: Seq[Sequence], frame: Frame, seen: View | None) -> list[Bet]:
        """Let proposers and controller say what they would; `seen`: of one text they have."""
        n, quiet = len(sequences), seen is None and self._is_quiet(sequences)
        n_due = self.controller.due(n)
        views = [seen or self._view(seq, n, frame, i < n_due) for i, seq in enumerate(sequences)]
        if 0 < n_due < n:  # whoever is not asked has nothing to say in this round
            views[n_due:] = [view.silenced(self._free) for view in views[n_due:]]
        choices = [
            self._explain(choice, seq, view)
            for choice, seq, view in zip(
                self.controller.choose(views), sequences, views, strict=True
            )
        ]
        drafts = self._drafts(sequences, views, choices)
        for seq, choice, draft in zip(sequences, choices, drafts, strict=True):
            if choice.look or self._looking.texts:
                self._look(seq, choice, draft)
        placed = [
            bet_on(choice, draft, view)
            for choice, draft, view in zip(choices, drafts, views, strict=True)
        ]
        if n == 1:
            self._remember(sequences[0], placed[0])
        else:
            self._staked = any(bet.draft.tokens or bet.n_dropped for bet in placed)
        if quiet:
            again = [Bet(bet.choice, NO_DRAFT) for bet in placed]
            self._quiet = _Quiet(list(sequences), frame, tuple(self.proposers), again)
        return placed

    def _is_quiet(self, sequences: Seq[Sequence]) -> bool:
        """Whether the coming round is plain, whatever the last one showed."""
        if not self.proposers:
            return True
        if any(self._at_mark(seq) for seq in sequences):
            self.controller.notice()
        rests = self.controller.rests()
        return all((rests and seq.request.window is None) or seq.request.plain for seq in sequences)

    def _at_mark(self, seq: Sequence) -> bool:
        """Whether a grammar holds and the text is outside of its strings: something may be forced.
        That is seen from the last token; a long string is rested in, and its end noticed."""
        if seq.constraint is None or seq.request.plain or not seq.n_generated:
            return False
        return SKELETON in self.proposers and seq.constraint.must(()) is not None

    def glance(self, sequences: Seq[Sequence]) -> None:
        """A device computes, and nothing was searched for: see whether texts repeat themselves
        after all. What the free proposers expect is compared with what came, a round later."""
        if not self.proposers:
            return
        if not self.controller.rests():
            self._glances.pause()
            return
        texts = [seq for seq in sequences if not seq.request.plain]
        for seq in self._glances.whose_turn(texts):
            self._glances.follow(seq.seq_id, len(seq.tokens), longest(self._glanced(seq)))
        if texts and self._glances.repeats(len(texts)):
            self.controller.notice()
            if len(sequences) == 1:
                self._consider(texts[0])

    def _consider(self, seq: Sequence) -> None:
        """To search for what seems to repeat itself may take more than there is to spare: what it
        would find is weighed now, and only if that pays it is searched for."""
        if not self.controller.rests() or seq.constraint is not None:
            return
        found = {draft.proposer: draft for draft in self._glanced(seq)}
        try:
            shown = self._glances.shown(seq.seq_id)
            self.controller.consider(seq.seq_id, found, shown, seq.n_generated)
        except Exception as error:  # a pass is under way, which must not fail for it
            self._faults.tell("weighing what a search would find failed", error)

    def _glanced(self, seq: Sequence) -> list[Draft]:
        """What the free proposers that look into texts would draft."""
        allowed = self.proposers if seq.request.proposers is None else seq.request.proposers
        names = [n for n in allowed if n in self._free and n != SKELETON and n in self.proposers]
        ask = replace(free_ask(seq, WINDOW), constraint=None)
        return [self._propose(name, (ask,))[0] for name in names]

    def prepare(self, seq: Sequence, draft: Seq[int], n_sequences: int) -> None:
        """A device computes a round of this sequence: the next one's draft is made ready. Where
        nobody will search for it, or a grammar has a say in it, it is not looked for."""
        if seq.request.plain:
            return
        looks = seq.constraint is None and not self.controller.rests()
        window = self._widest(n_sequences) if looks else 0
        self._news.prepare(seq, draft, window)

    def _widest(self, n_sequences: int) -> int:
        return max(self._max_window, self._most_rows // n_sequences - 1)

    def begin(self, seq: Sequence) -> None:
        """A sequence has got its slot."""
        started = perf_counter()
        self._looking.forget(seq.seq_id)
        self._glances.forget(seq.seq_id)
        self._news.begin(seq)
        seq.outside_s += perf_counter() - started

    def read(self, seq: Sequence, *, meanwhile: bool = False) -> None:
        """The target is reading a prompt. `meanwhile`: a device does at the same time, so that what
        proposers do about it takes nobody's."""
        started = perf_counter()
        self._news.read(seq)
        if not meanwhile:
            seq.outside_s += perf_counter() - started

    def finish(self, seq: Sequence) -> None:
        self._looking.forget(seq.seq_id)
        self._glances.forget(seq.seq_id)
        self._news.finish(seq)

    def shift(self, seq_id: int, keep: int, discard: int) -> None:
        self._looking.cut_short(seq_id)
        self._glances.forget(seq_id)
        self._news.shift(seq_id, keep, discard)

    def close(self) -> None:
        for proposer in self.proposers.values():
            proposer.close()

    def _view(self, seq: Sequence, n_sequences: int, frame: Frame, due: bool) -> View:
        request = seq.request
        allowed = self.proposers if request.proposers is None else request.proposers
        room = self._context_size - seq.n_cached - 1
        # One token of the round is the target's own, so the last one needs no draft.
        most = max(0, min(self._widest(n_sequences), room, seq.n_remaining - 1))
        if request.window is not None:
            most = min(most, request.window)
        if frame.window is not None:
            most = min(most, frame.window)
        proposers = tuple([n for n in allowed if n in self.proposers and _can_say(n, seq)])
        searched = due or request.window is not None  # a window that was asked for is kept to
        asked = proposers if searched and most else ()
        offers = self._offers([name for name in asked if name in self._free], seq, most)
        return View(
            seq_id=seq.seq_id,
            n_context=seq.n_cached,
            n_prompt=len(request.prompt),
            n_generated=seq.n_generated,
            max_window=most,
            proposers=proposers,
            offers=offers,
            window=request.window,
            greedy=request.sampling.greedy,
            thinking=seq.thinking,
            fallback=request.fallback or (None if proposers else self._absence(seq)),
            n_remaining=seq.n_remaining,
            answer=seq.number,
            searched=searched,
            unread=self._unread(proposers, seq),
            crowded=self.crowded,
            floor=frame.floor,
            pads=frame is ANY_SHAPE,
            looks=self._looking.seen(seq) if self._looking.texts else None,
            shown=self._glances.shown(seq.seq_id) if searched else (),
        )

    def _look(self, seq: Sequence, choice: Choice, draft: Draft) -> None:
        """A draft that is only to be compared with the text."""
        if choice.look:
            self._looking.keep(seq, draft)

    def _unread(self, names: Seq[str], seq: Sequence) -> Mapping[str, int]:
        """By draft model: tokens that it has not read yet."""
        named = ((name, self.proposers[name]) for name in names if name not in self._free)
        return {name: p.n_unread(seq.seq_id, seq.tokens) for name, p in named}

    def _absence(self, seq: Sequence) -> Fallback:
        """Why none of a request's proposers can draft."""
        # Whoever loads a drafter says so on its own thread.
        wanted = tuple(self.absent) if seq.request.proposers is None else seq.request.proposers
        missing = (self.absent[name] for name in wanted if name in self.absent)
        return seq.request.fallback or next(missing, Fallback.REQUEST)

    def _explain(self, choice: Choice, seq: Sequence, view: View) -> Choice:
        """Nothing to say, but one proposer broke or is missing: that is the better reason."""
        if choice.fallback is not Fallback.NO_DRAFT:
            return choice
        if any(offer is FAILED for offer in view.offers.values()):
            return replace(choice, fallback=Fallback.DRAFT_ERROR)
        if self.absent:
            missing = self._absence(seq)
            if missing is not Fallback.REQUEST:
                return replace(choice, fallback=missing)
        return choice

    def _offers(self, names: Seq[str], seq: Sequence, window: int) -> Mapping[str, Draft]:
        """What each free proposer would draft, as far as a grammar lets it."""
        if not names:
            return _NO_OFFERS
        ask = free_ask(seq, window)
        offers = {name: self._propose(name, (ask,))[0] for name in names}
        forced = offers.get(SKELETON, NO_DRAFT)
        if forced.tokens and len(forced.tokens) < window:
            for name in names:
                if self._continues(name):
                    longer = self._go_on(name, ask, forced)
                    if len(longer.tokens) > len(forced.tokens):
                        offers[longer.proposer] = longer
        return offers

    def _continues(self, name: str) -> bool:
        return self.proposers[name].continues

    def _go_on(self, name: str, ask: Ask, ahead: Draft) -> Draft:
        """What a free proposer drafts behind what the grammar forces."""
        return joined(ahead, self._propose(name, (behind(ask, ahead),))[0])

    def _drafts(
        self, sequences: Seq[Sequence], views: Seq[View], choices: Seq[Choice]
    ) -> list[Draft]:
        drafts = [
            view.offers.get(choice.proposer, NO_DRAFT).first(choice.window)
            for view, choice in zip(views, choices, strict=True)
        ]
        asked = [
            i
            for i, (view, choice) in enumerate(zip(views, choices, strict=True))
            if choice.window
            and choice.proposer not in self._free
            and choice.proposer not in view.offers
        ]
        for name in {choices[i].proposer for i in asked}:
            at = [i for i in asked if choices[i].proposer == name]
            # What the grammar forces needs no model: it drafts on from there.
            ahead = [self._forced(name, views[i], choices[i]) for i in at]
            asks = [
                behind(model_ask(sequences[i], choices[i]), forced)
                for i, forced in zip(at, ahead, strict=True)
            ]
            worth = _worth([choices[i] for i in at], asks, ahead)
            found = self._propose(name, asks, worth)
            for i, forced, draft in zip(at, ahead, found, strict=True):
                drafts[i] = draft if draft is FAILED else joined(forced, draft)
        return drafts

    def _forced(self, name: str, view: View, choice: Choice) -> Draft:
        if not self._continues(name):
            return NO_DRAFT
        return view.offers.get(SKELETON, NO_DRAFT).first(choice.window)

    def _propose(self, name: str, asks: Seq[Ask], worth: Worth | None = None) -> list[Draft]:
        """A proposer's fault must never cost an answer: without a draft, the round is plain."""
        try:
            return [
                obeying(ask, draft)
                for ask, draft in zip(asks, self.proposers[name].draft(asks, worth), strict=True)
            ]
        except Exception as error:
            self._faults.tell(f"the proposer {name} failed, decoding plainly", error)
            return [FAILED] * len(asks)


def _worth(choices: Seq[Choice], asks: Seq[Ask], ahead: Seq[Draft]) -> Worth | None:
    """Whether each draft goes on, as its own choice has it."""
    if not any(choice.keep_going for choice in choices):
        return None
    own = {
        ask.seq_id: (choice.keep_going, before.confidence)
        for choice, ask, before in zip(choices, asks, ahead, strict=True)
    }

    def going(drafted: Mapping[int, Seq[float]]) -> list[int]:
        on = []
        for seq_id, confidence in drafted.items():
            goes, before = own[seq_id]
            if goes is None or goes([*before, *confidence]):
                on.append(seq_id)
        return on

    return going


def _can_say(name: str, seq: Sequence) -> bool:
    """Whether what a proposer needs came with the request."""
    if name == PREDICTION:
        return bool(seq.request.expected)
    return name != SKELETON or seq.constraint is not None
