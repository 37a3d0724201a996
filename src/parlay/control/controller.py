"""What a controller is: it sees each sequence as numbers and chooses a proposer and a window.

Knows neither tokens' meaning nor models. The fixed window is the simplest one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from parlay.control.prices.cost import CostTable
from parlay.decoding.draft import NO_DRAFT, NOTHING_READY, Draft, Look, Ready, Shown
from parlay.decoding.round import Fallback, Round


@dataclass(slots=True)  # not frozen, as `Round` is not
class View:
    """One sequence about to decode, as a controller may see it; nobody changes it."""

    seq_id: int
    n_context: int  # tokens in the target's cache
    n_prompt: int
    n_generated: int
    max_window: int  # by room, request, remaining tokens and exact shapes
    proposers: tuple[str, ...]  # proposers this request may use, in order of preference
    offers: Mapping[str, Draft]  # what the free proposers (no model behind them) would draft now
    window: int | None = None  # a window fixed by the request
    greedy: bool = True
    thinking: bool = False
    fallback: Fallback | None = None  # the request may not speculate now, and why
    n_remaining: int = 256  # tokens the request may still generate
    answer: int = 0  # tells it from others that had its slot; of all 0, by how far it has come
    searched: bool = True  # whether the free proposers were asked at all
    ready: Ready = NOTHING_READY  # what its draft model has drafted already
    crowded: bool = False  # others wait for a slot, and gain by whoever ends sooner
    floor: int = 1  # rows of each sequence that the pass is padded to at least
    pads: bool = False  # whether its pass may be padded to any shape
    # What came of those that were asked for last, told once; None: nothing is known yet.
    looks: Sequence[Look] | None = None
    shown: Sequence[Shown] = ()  # by the text in rounds without a search, told once
    # By draft model that reads without being asked: tokens it lacks before it can draft.
    unread: Mapping[str, int] = field(default_factory=dict)

    def silenced(self, free: Collection[str]) -> View:
        """Beside others that are searched for: without a search free proposers have nothing to say,
        where a missing offer would be a draft model's."""
        if self.searched:
            return self
        return replace(self, offers={name: NO_DRAFT for name in self.proposers if name in free})


# Given the confidences drafted so far: is the next token worth its cost?
KeepGoing = Callable[[Sequence[float]], bool]

# Given the confidences of a finished draft: how many of its tokens are worth a row in the pass?
Verify = Callable[[Sequence[float]], int]


@dataclass(slots=True)  # not frozen, as `Round` is not
class Choice:
    """A controller's decision for one sequence and round."""

    proposer: str
    window: int
    fallback: Fallback | None = None  # set where the window is 0
    keep_going: KeepGoing | None = None  # optimal stopping inside the draft; None: no stopping
    verify: Verify | None = None  # how much of a draft model's draft to verify; None: all of it
    expected_gain: float | None = None  # predicted tokens per second over plain decoding's
    reason: str = ""
    ahead: bool = True  # whether its drafter, if it can, goes on while the target verifies
    n_ahead: int | None = None  # tokens of the next draft to make then; None: as many as now
    # The draft is kept out of the pass, and compared with the text as it comes. With a window of 0
    # it is made beside passes, of as many tokens as may be made ahead, and another after it.
    look: bool = False
    widths: Sequence[int] = ()  # by its rows, those to pad the pass to; none: as it is

    @property
    def next_window(self) -> int:
        """Tokens of the next draft that are made ahead."""
        return self.window if self.n_ahead is None else self.n_ahead

    def width(self, rows: int) -> int:
        """The rows of a pass that needs so many."""
        return self.widths[rows] if rows < len(self.widths) else rows


class Controller(Protocol):
    """Chooses before a pass, learns after it."""

    def due(self, n_texts: int) -> int:
        """For how many of the texts the proposers should be asked in the coming round; called once
        for each round."""

    def rests(self) -> bool:
        """Whether `due` will say no: the coming round is plain, whatever the last one showed."""

    def notice(self) -> None:
        """A text repeats itself, in rounds that nothing was searched for."""

    def hear(self, seq_id: int, looks: Sequence[Look], n_generated: int) -> Choice | None:
        """While a device computes, so many tokens being there: what came of drafts that were made
        beside passes. More of the same to make, if any."""

    def consider(
        self, seq_id: int, offers: Mapping[str, Draft], shown: Sequence[Shown], n_generated: int
    ) -> None:
        """While a device computes a round that nothing was searched for: what a search would find
        now for a text that is alone, so many tokens being there, and what that has shown."""

    def again(self, view: View) -> Choice | None:
        """The last bet once more, for one sequence alone; None: it has to be weighed. The last
        round may be observed before this or after it."""

    def choose(self, views: Sequence[View]) -> list[Choice]:
        """One choice per sequence of the coming pass; the cost is shared, so they come together."""

    def observe(self, rounds: Sequence[Round]) -> None:
        """The rounds of one finished pass."""

    def prices(self) -> CostTable | None:
        """What it chooses by; None: it knows no prices."""


class Listener(Protocol):
    """Hears of every round and chooses nothing: counts, traces, figures."""

    def observe(self, rounds: Sequence[Round]) -> None:
        """The rounds of one finished pass."""


def plain(reason: Fallback) -> Choice:
    """Decode this round without a draft."""
    return Choice("none", 0, reason)


def given(view: View) -> Choice | None:
    """The choice, where a request leaves none to the controller."""
    if view.fallback is not None:
        return plain(view.fallback)
    if not view.proposers or view.window == 0:
        return plain(Fallback.REQUEST)
    return None if view.window is None else first_draft(view, view.window)


def no_room(view: View) -> Choice:
    """A window of 0 is the largest there can be: one token is left, or exactness forbids more."""
    return plain(Fallback.NO_DRAFT if view.n_remaining <= 1 else Fallback.EXACT)


def first_draft(view: View, window: int) -> Choice:
    """This window, with the first proposer that has something to say."""
    if view.max_window == 0:
        return no_room(view)
    for proposer in view.proposers:
        offer = view.offers.get(proposer)
        if offer is None or offer.tokens:  # a model always has something to say
            return Choice(proposer, min(window, view.max_window))
    return plain(Fallback.NO_DRAFT)


class NeverRests:
    """What a controller is that chooses in every round and has no prices."""

    def due(self, n_texts: int) -> int:
        return n_texts

    def rests(self) -> bool:
        return False

    def notice(self) -> None:
        """It never rests."""

    def hear(self, seq_id: int, looks: Sequence[Look], n_generated: int) -> Choice | None:
        """It never looks."""
        return None

    def consider(
        self, seq_id: int, offers: Mapping[str, Draft], shown: Sequence[Shown], n_generated: int
    ) -> None:
        """It never rests."""

    def again(self, view: View) -> Choice | None:
        """To choose takes it no time."""
        return None

    def prices(self) -> CostTable | None:
        return None


class FixedWindow(NeverRests):
    """Always the same window, with the first proposer that has something to say."""

    def __init__(self, window: int) -> None:
        self._window = window

    def choose(self, views: Sequence[View]) -> list[Choice]:
        return [given(view) or self._choose(view) for view in views]

    def observe(self, rounds: Sequence[Round]) -> None:
        """A fixed window learns nothing."""

    def _choose(self, view: View) -> Choice:
        return first_draft(view, self._window) if self._window else plain(Fallback.REQUEST)
