"""What a controller and the loop that asks it say to each other: views, choices, rounds.

Knows numbers only: neither tokens' meaning, nor models, nor clocks.

Who calls what, and when. All of it on the engine's thread, in this order for every pass that
decodes:

1. *Free drafts.* The loop asks the proposers without a model for every answer whose last `Choice`
   had `search`, and for every answer that decodes for the first time. What they say is
   `View.offers`, by proposer; an answer that was not searched for has none and `searched` is False.
2. `choices = controller.choose(views)`: one view for each answer of the coming pass, in the order
   of its rows. A pass that only reads prompts is not chosen for; who reads a prompt has no view.
   `choose` knows every pass but the last in full (they were observed), and of the last one only
   `View.held`, what came of its draft. So pass r may be chosen for before pass r - 1 is observed,
   never before r - 2 is.
3. *Drafting.* `choices.each` has one `Choice` for each view, in order. A free draft is
   `view.offers[choice.proposer].first(choice.window)`. A draft model that goes step by step makes
   one token for each answer that names it and then asks
   `going = choices.going({seq_id: confidences so far})` with all answers that it drafts for; it
   makes another token for those in `going`, asks again, and ends when nobody is left. (It also
   ends an answer's draft by itself: `choice.window` tokens, an end of text, a grammar.) A block
   drafter makes `choice.window` tokens at once and does not ask. With two draft models in one pass
   each asks for its own answers.
4. `n = choices.verified({seq_id: confidences})`, once, with all that draft models made: how many
   tokens of each are verified; the rest is `Round.n_dropped`. Not asked where no model drafted.
5. *The pass.* A lone answer's `rows` are padded to `choices.width(rows)`. With equal rows for all
   (`View.equal`), or caches apart, the loop pads every answer to the longest as it finds cheapest;
   with one cache for all it pads nothing.
6. `controller.observe(rounds)`, once for each pass that decoded, with the rounds of all its
   answers, those that ended with it too: on a device that computes by itself beside the next pass,
   elsewhere before the next `choose`. What ran beside a pass is not in its `timing`.
7. Beside a pass of a device the loop may also search for answers that were not searched for
   before it, and tell in `Round.agreed` how much of that came: that is how a text that begins to
   repeat itself is noticed where searches are dear.

`kept()` is what is worth keeping between runs (a dict that JSON can hold); a controller is made
with it. When prices were measured anew, or the pair of models changes, the engine makes another
controller with the last one's `kept()` and puts it in its place between two passes: a controller is
never changed from outside. Queries change nothing: only `choose` and `observe` do.

Of a `decoding.round.Round` a controller reads: seq_id, answer, proposer, n_drafted, n_accepted,
n_generated, n_dropped, confidence, n_rows, n_sequences, n_pass_rows, n_padding, n_context, timing,
fallback, agreed, reads_prompt (the pass read somebody's prompt too).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from parlay.decoding.draft import Draft
from parlay.decoding.round import Fallback, Round

Confidences = Mapping[int, Sequence[float]]  # by seq_id, of all tokens that were drafted so far


@dataclass(frozen=True, slots=True)
class Held:
    """What came of an answer's last round, which is not yet observed."""

    n_drafted: int
    n_accepted: int
    n_generated: int


@dataclass(slots=True)  # not frozen: so many fields take three times as long then, every round
class View:
    """One answer about to decode; nobody changes it."""

    seq_id: int  # the slot it has
    answer: int  # tells it from others that had the slot
    n_context: int  # tokens in the target's cache
    n_generated: int
    n_remaining: int  # tokens that it may still generate
    max_window: int  # by room, limits and exact shapes; what it may draft at most
    proposers: tuple[str, ...]  # that it may use, in order of preference
    models: Collection[str] = ()  # those of them that draft with a model, and so take time
    offers: Mapping[str, Draft] = field(default_factory=dict)  # of free proposers
    searched: bool = True  # whether those were asked
    held: Held | None = None  # None: all its rounds are observed
    window: int | None = None  # that the request asks for
    fallback: Fallback | None = None  # it may not speculate now, and why
    greedy: bool = True
    # By draft model: tokens it has to read before its first new one, that one's row included;
    # absent: one. And tokens that it has drafted already.
    unread: Mapping[str, int] = field(default_factory=dict)
    ready: Mapping[str, int] = field(default_factory=dict)
    # Of the pass, the same in all its views:
    crowded: bool = False  # others wait for a slot, and gain by whoever ends sooner
    floor: int = 1  # rows that the pass has for each answer at least
    equal: bool = False  # all answers have equally many rows
    pads: bool = True  # a lone answer's pass may be padded to any shape
    shape_is_new: bool = False  # since the last pass that decoded something else was computed


@dataclass(frozen=True, slots=True)
class Choice:
    """What is drafted for one answer in the coming pass."""

    proposer: str = "none"
    window: int = 0  # tokens at most
    fallback: Fallback | None = None  # why nothing is drafted; set where the window is 0
    search: bool = True  # whether free proposers are asked for the pass after this one
    expected_gain: float | None = None  # tokens a second over plain decoding's
    reason: str = ""


def as_many_as_asked(drafted: Confidences) -> Collection[int]:
    """Every draft goes on to its window."""
    return drafted.keys()


def all_of_them(drafted: Confidences) -> Mapping[int, int]:
    """Whole drafts are verified."""
    return {seq_id: len(each) for seq_id, each in drafted.items()}


def as_it_is(rows: int) -> int:
    """No padding."""
    return rows


@dataclass(frozen=True, slots=True)
class Choices:
    """What is done in the coming pass: one choice for each view, and the answers to what drafting
    has to ask meanwhile."""

    each: Sequence[Choice]
    going: Callable[[Confidences], Collection[int]] = as_many_as_asked  # who drafts another token
    verified: Callable[[Confidences], Mapping[int, int]] = all_of_them  # how much goes in the pass
    width: Callable[[int], int] = as_it_is  # rows that a lone answer's pass is padded to


class Controller(Protocol):
    """Chooses before a pass and learns after it; see the module for who calls it when."""

    def choose(self, views: Sequence[View]) -> Choices:
        """What is drafted for the answers of the coming pass."""

    def observe(self, rounds: Sequence[Round]) -> None:
        """The rounds of one finished pass."""

    def kept(self) -> dict[str, Any]:
        """What is worth keeping between runs."""


def plain(reason: Fallback, *, search: bool = True) -> Choice:
    """Decode this round without a draft."""
    return Choice(fallback=reason, search=search)


def imposed(view: View) -> Choice | None:
    """The choice, where request or room leave none to a controller."""
    if view.fallback is not None:
        return plain(view.fallback, search=False)
    if not view.proposers or view.window == 0:
        return plain(Fallback.REQUEST, search=False)
    if view.max_window == 0:  # one token is left, or exactness forbids more
        return plain(Fallback.NO_DRAFT if view.n_remaining <= 1 else Fallback.EXACT)
    return None if view.window is None else first_draft(view, view.window)


def first_draft(view: View, window: int) -> Choice:
    """This window, with the first proposer that has something to say."""
    for proposer in view.proposers:
        offer = view.offers.get(proposer)
        if proposer in view.models or (offer is not None and offer.tokens):
            return Choice(proposer, min(window, view.max_window))
    return plain(Fallback.NO_DRAFT)


class FixedWindow:
    """Always the same window, with the first proposer that has something to say; 0: plain."""

    def __init__(self, window: int) -> None:
        self.window = window

    def choose(self, views: Sequence[View]) -> Choices:
        return Choices([self._choose(view) for view in views])

    def observe(self, rounds: Sequence[Round]) -> None:
        """It learns nothing."""

    def kept(self) -> dict[str, Any]:
        return {}

    def _choose(self, view: View) -> Choice:
        if not self.window and view.window is None and view.fallback is None:
            return plain(Fallback.REQUEST, search=False)
        return imposed(view) or first_draft(view, self.window)
