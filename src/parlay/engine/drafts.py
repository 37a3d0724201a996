"""Drafts: what is put behind each answer's next token in the coming pass.

Asks the proposers without a model, then the controller, then the models that it chose. Knows
nothing of passes or verdicts. Whatever breaks here costs a draft, never an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Protocol

from parlay.control.choice import (
    Choice,
    Choices,
    Confidences,
    Controller,
    View,
    all_of_them,
    as_it_is,
    plain,
)
from parlay.decoding.draft import NO_DRAFT, Draft
from parlay.decoding.round import Fallback, Round
from parlay.decoding.span import common_prefix
from parlay.engine.exact.shapes import ANY_SHAPE, Frame
from parlay.engine.faults import Faults
from parlay.engine.sequence import Sequence
from parlay.proposers.joining import behind, joined, obeying
from parlay.proposers.prediction import PREDICTION
from parlay.proposers.proposer import Ask, Proposer, Worth
from parlay.proposers.skeleton import SKELETON


class Pause(Protocol):
    """Takes a drafter that does not pay off the table, and puts it back."""

    paused: bool

    def before_pass(self, sequences: Seq[Sequence]) -> None: ...

    def observe(self, rounds: Seq[Round]) -> None: ...


FAILED = Draft((), "none")  # of a proposer that broke
_NO_OFFERS: Mapping[str, Draft] = {}


@dataclass(slots=True)
class Drafted:
    """What one answer has in the coming pass, and what it could have had."""

    choice: Choice
    draft: Draft = NO_DRAFT
    n_dropped: int = 0  # drafted, but not worth a row
    offers: Mapping[str, Draft] = field(default_factory=dict)  # of proposers without a model

    def agreed(self, tokens: Seq[int]) -> dict[str, int]:
        """How many leading tokens of every offer, taken or not, the round generated."""
        return {name: common_prefix(draft.tokens, tokens) for name, draft in self.offers.items()}

    @property
    def fallback(self) -> Fallback | None:
        """Why nothing is verified."""
        if self.draft.tokens:
            return None
        if self.draft is FAILED:
            return Fallback.DRAFT_ERROR
        if self.n_dropped:
            return Fallback.UNPROFITABLE
        return self.choice.fallback or Fallback.NO_DRAFT


class Drafts:
    """The proposers of one engine and the controller that chooses among them."""

    def __init__(
        self,
        controller: Controller,
        proposers: Mapping[str, Proposer],
        context_size: int,
        max_window: int,
        most_rows: int = 0,
    ) -> None:
        """`max_window` of every answer; wider where a pass of `most_rows` has room for it."""
        self.controller = controller
        self.proposers = dict(proposers)
        self.absent: dict[str, Fallback] = {}  # proposers that are not there now, and why
        self.pause: Pause | None = None  # of a drafter that reads the target's states
        self.crowded = False  # whether others wait for a slot
        self.faults = Faults()
        self._context_size = context_size
        self._max_window = max_window
        self._most_rows = most_rows
        self._turn = 0  # whose search beside a pass is next

    @property
    def named(self) -> list[str]:
        """The proposers that were asked for; others draft from what comes with a request."""
        there = tuple(self.proposers)  # any thread asks, and the engine's changes them
        return sorted(name for name in there if name not in (PREDICTION, SKELETON))

    # -- before a pass --------------------------------------------------------

    def make(
        self, sequences: Seq[Sequence], frame: Frame, *, equal: bool, shape_is_new: bool = False
    ) -> tuple[list[Drafted], Callable[[int], int]]:
        """What each of them has in the coming pass, and the rows that a lone one is padded to."""
        try:
            views = [
                self._view(seq, len(sequences), frame, equal, shape_is_new) for seq in sequences
            ]
            choices = self.controller.choose(views)
            drafted = [
                Drafted(self._explained(choice, seq, view), offers=view.offers)
                for choice, seq, view in zip(choices.each, sequences, views, strict=True)
            ]
            self._fill(drafted, sequences, views, choices)
        except Exception as error:
            self.faults.tell("choosing drafts failed, decoding plainly", error)
            return self.none(sequences), as_it_is
        for seq, each in zip(sequences, drafted, strict=True):
            seq.search = each.choice.search
        return drafted, choices.width

    def none(self, sequences: Seq[Sequence]) -> list[Drafted]:
        """For a round that must not fail again."""
        return [Drafted(plain(Fallback.DRAFT_ERROR)) for _ in sequences]

    def _view(
        self, seq: Sequence, n_sequences: int, frame: Frame, equal: bool, shape_is_new: bool
    ) -> View:
        request = seq.request
        allowed = self.proposers if request.proposers is None else request.proposers
        names = tuple([n for n in allowed if n in self.proposers and _can_say(n, seq)])
        widest = max(self._max_window, self._most_rows // n_sequences - 1)
        # One token of the round is the target's own, so the last one needs no draft.
        most = min(widest, self._context_size - seq.n_cached - 1, seq.n_remaining - 1)
        for limit in (request.window, frame.window):
            most = most if limit is None else min(most, limit)
        most = max(0, most)
        models = [name for name in names if not self.proposers[name].free]
        # Of a window that was asked for, and of a grammar, there is always something to hear.
        searched = seq.search or request.window is not None or seq.constraint is not None
        asks = searched and most > 0 and not request.plain
        return View(
            seq_id=seq.seq_id,
            answer=seq.number,
            n_context=seq.n_cached,
            n_generated=seq.n_generated,
            n_remaining=seq.n_remaining,
            max_window=most,
            proposers=names,
            models=models,
            offers=self._offers(seq, names, most) if asks else _NO_OFFERS,
            searched=searched,
            held=seq.held,
            window=request.window,
            fallback=request.fallback or (None if names else self._absence(seq)),
            greedy=request.sampling.greedy,
            unread=self._unread(seq, models) if models and not request.plain else {},
            crowded=self.crowded,
            floor=frame.floor,
            equal=equal,
            pads=frame is ANY_SHAPE,
            shape_is_new=shape_is_new,
        )

    def _unread(self, seq: Sequence, models: Seq[str]) -> dict[str, int]:
        return {n: self.proposers[n].n_unread(seq.seq_id, seq.tokens) for n in models}

    def _absence(self, seq: Sequence) -> Fallback:
        """Why none of a request's proposers can draft."""
        wanted = tuple(self.absent) if seq.request.proposers is None else seq.request.proposers
        # Whoever loads a drafter changes these on its own thread.
        return next((self.absent[n] for n in wanted if n in self.absent), Fallback.REQUEST)

    def _explained(self, choice: Choice, seq: Sequence, view: View) -> Choice:
        """Nothing to say, but one proposer broke or is missing: that is the better reason."""
        if choice.fallback is not Fallback.NO_DRAFT:
            return choice
        if any(offer is FAILED for offer in view.offers.values()):
            return replace(choice, fallback=Fallback.DRAFT_ERROR)
        missing = self._absence(seq) if self.absent else Fallback.REQUEST
        return choice if missing is Fallback.REQUEST else replace(choice, fallback=missing)

    # -- proposers without a model --------------------------------------------

    def _offers(self, seq: Sequence, names: Seq[str], window: int) -> dict[str, Draft]:
        """What each of them would draft, as far as a grammar lets it; what a grammar forces is
        continued by those who can."""
        free = {name: self.proposers[name] for name in names if self.proposers[name].free}
        ask = self._ask(seq, window)
        offers = {name: self._asked(proposer, [ask])[0] for name, proposer in free.items()}
        forced = offers.get(SKELETON, NO_DRAFT)
        if 0 < len(forced.tokens) < window:
            further = behind(ask, forced)
            for proposer in free.values():
                if proposer.continues:
                    longer = joined(forced, self._asked(proposer, [further])[0])
                    if len(longer.tokens) > len(forced.tokens):
                        offers[longer.proposer] = longer
        return offers

    def _ask(self, seq: Sequence, window: int) -> Ask:
        request = seq.request
        return Ask(
            seq.seq_id,
            seq.tokens,
            window,
            sampling=request.sampling,
            position=seq.n_generated,
            n_prompt=len(request.prompt),
            expected=request.expected,
            constraint=seq.constraint,
            owner=request.memory,
        )

    def _asked(
        self,
        proposer: Proposer,
        asks: Seq[Ask],
        worth: Worth | None = None,
    ) -> list[Draft]:
        """Its drafts, as far as grammars let them come; should it break, none."""
        try:
            found = proposer.draft(asks) if worth is None else proposer.draft(asks, worth)
            return [obeying(ask, draft) for ask, draft in zip(asks, found, strict=True)]
        except Exception as error:
            self.faults.tell(f"the proposer {proposer.name} failed, decoding plainly", error)
            return [FAILED] * len(asks)

    # -- draft models ---------------------------------------------------------

    def _fill(
        self,
        drafted: Seq[Drafted],
        sequences: Seq[Sequence],
        views: Seq[View],
        choices: Choices,
    ) -> None:
        """Free drafts are there; models make theirs now, each for all who chose it."""
        by_model: dict[str, list[int]] = {}
        for i, (each, view) in enumerate(zip(drafted, views, strict=True)):
            choice = each.choice
            if choice.proposer in view.models and choice.window:
                by_model.setdefault(choice.proposer, []).append(i)
            elif choice.window:
                each.draft = view.offers.get(choice.proposer, NO_DRAFT).first(choice.window)
        for name, places in by_model.items():
            asked = [(sequences[i], drafted[i]) for i in places]
            self._draft_with(self.proposers[name], asked, choices)
        made = {
            sequences[i].seq_id: drafted[i].draft.confidence
            for places in by_model.values()
            for i in places
            if drafted[i].draft.confidence
        }
        if not made or choices.verified is all_of_them:
            return
        n_verified = choices.verified(made)
        for places in by_model.values():
            for i in places:
                n = n_verified.get(sequences[i].seq_id, len(drafted[i].draft.tokens))
                drafted[i].n_dropped = max(0, len(drafted[i].draft.tokens) - n)
                drafted[i].draft = drafted[i].draft.first(n) if n else NO_DRAFT

    def _draft_with(
        self, proposer: Proposer, asked: Seq[tuple[Sequence, Drafted]], choices: Choices
    ) -> None:
        """One model's drafts. What a grammar forces needs no model: it drafts on from there."""
        forced = {
            seq.seq_id: each.offers.get(SKELETON, NO_DRAFT).first(each.choice.window)
            if proposer.continues
            else NO_DRAFT
            for seq, each in asked
        }
        asks = [
            behind(self._ask(seq, each.choice.window), forced[seq.seq_id]) for seq, each in asked
        ]

        def worth(so_far: Confidences) -> Collection[int]:
            """The next token, given how sure all before it are."""
            return choices.going({s: (*forced[s].confidence, *c) for s, c in so_far.items()})

        found = self._asked(proposer, asks, worth)
        for (seq, each), draft in zip(asked, found, strict=True):
            each.draft = draft if draft is FAILED else joined(forced[seq.seq_id], draft)

    # -- an answer's life -----------------------------------------------------

    def open(self, seq: Sequence) -> None:
        """It has got its slot: proposers keep what it shares with the slot's last text."""
        started = perf_counter()
        for proposer in tuple(self.proposers.values()):
            with self.faults.told(f"the proposer {proposer.name} failed to begin"):
                proposer.open(seq.seq_id, seq.tokens, seq.n_reused, seq.request.memory)
        seq.outside_s += perf_counter() - started

    def beside(self, seq: Sequence, draft: Seq[int], n_sequences: int) -> None:
        """The target reads its prompt, or verifies this draft of it."""
        request = seq.request
        widest = max(self._max_window, self._most_rows // n_sequences - 1)
        looks = seq.search and seq.constraint is None and not request.plain
        ask = self._ask(seq, widest if looks else 0)
        for name, proposer in tuple(self.proposers.items()):
            allowed = request.proposers is None or name in request.proposers
            if proposer.free or (allowed and not request.plain):
                try:
                    proposer.meanwhile(ask, draft)
                except Exception as error:
                    self.faults.tell(f"the proposer {name} failed beside a pass", error)

    def search_beside(self, rows: Seq[tuple[Sequence, Drafted]]) -> None:
        """One text that nobody searched for this pass is searched while it runs, each in turn: so a
        text that begins to repeat itself is noticed."""
        unsearched = [each for each in rows if not each[0].search and not each[0].request.plain]
        if not unsearched:
            return
        self._turn += 1
        seq, drafted = unsearched[self._turn % len(unsearched)]
        allowed = self.proposers if seq.request.proposers is None else seq.request.proposers
        names = [n for n in allowed if n in self.proposers and _can_say(n, seq)]
        if seq.constraint is None and seq.n_remaining > 1:
            drafted.offers = self._offers(seq, names, self._max_window)

    def cut(self, seq_id: int, keep: int, gone: int) -> None:
        """So many tokens went, after so many that stay."""
        for proposer in self.proposers.values():
            with self.faults.told(f"the proposer {proposer.name} failed to slide"):
                proposer.cut(seq_id, keep, gone)

    def finish(self, seq: Sequence) -> None:
        for proposer in tuple(self.proposers.values()):
            with self.faults.told(f"the proposer {proposer.name} failed to finish"):
                proposer.finish(seq.seq_id, seq.tokens)

    def before_pass(self, sequences: Seq[Sequence]) -> None:
        """The target is about to read or to decode for these."""
        if self.pause is not None:
            with self.faults.told("a drafter was not told of a pass"):
                self.pause.before_pass(sequences)

    def observe(self, rounds: Seq[Round]) -> None:
        """The rounds of one finished pass, for the controller."""
        with self.faults.told("the controller failed to observe"):
            self.controller.observe(rounds)
        if self.pause is not None:
            with self.faults.told("a drafter's use was not counted"):
                self.pause.observe(rounds)

    def close(self) -> None:
        for proposer in self.proposers.values():
            proposer.close()


def _can_say(name: str, seq: Sequence) -> bool:
    """Whether what a proposer needs came with the request."""
    if name == PREDICTION:
        return bool(seq.request.expected)
    return name != SKELETON or seq.constraint is not None
