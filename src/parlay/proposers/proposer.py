"""What every proposer is: asked for a draft per sequence, told when a sequence starts or ends.

Knows nothing of verification; whoever follows this protocol can be bet on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeGuard, runtime_checkable

from parlay.decoding.constraint import Constraint
from parlay.decoding.draft import Draft, Ready
from parlay.decoding.sampling import Sampling

# Given the confidences drafted so far: is the next token worth its cost?
KeepGoing = Callable[[Sequence[float]], bool]

# Given the tokens drafted so far and their confidences: does another go on that needs no time?
Until = Callable[[Sequence[int], Sequence[float]], bool]

GREEDY = Sampling()


@dataclass(slots=True)  # not frozen, as `Round` is not
class Ask:
    """One sequence that wants a draft."""

    seq_id: int
    tokens: Sequence[int]  # every committed token; the same list grows from round to round
    window: int  # draft at most this many
    # A proposer that draws from a distribution draws as the target will.
    sampling: Sampling = GREEDY
    position: int = 0  # place in the answer of the first drafted token
    rejection: bool = False  # keep each token's distribution; draw independently of the target
    # None: draft the whole window, and do not spend time on confidences.
    keep_going: KeepGoing | None = None
    n_prompt: int = 0  # tokens before the answer
    expected: Sequence[int] = ()  # the answer the client expects; the same object every round
    constraint: Constraint | None = None  # a grammar that the answer obeys
    owner: str = ""  # whose request it is
    n_ahead: int = 0  # of the tokens, the last ones: drafted by another, not committed
    until: Until | None = None
    ahead: bool = False  # whether to draft on while the target verifies this

    @property
    def bound(self) -> bool:
        """Whether each token is bound to the place and the ask that it is drawn for."""
        return self.rejection or self.constraint is not None


@runtime_checkable
class Continuing(Protocol):
    """A proposer that can draft on from what another one drafted."""

    @property
    def continues(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Further:
    """One sequence whose draft the target verifies now."""

    seq_id: int
    tokens: Sequence[int]  # the committed ones; the same list grows when the pass has ended
    n_verified: int  # tokens of its draft that are in the pass
    window: int  # how many the next draft may have


@runtime_checkable
class Provident(Protocol):
    """A proposer that may have drafted more than was verified."""

    def ready(self, seq_id: int, tokens: Sequence[int]) -> Ready:
        """What is drafted already for a text; what was drafted ahead is told once."""


@runtime_checkable
class Foresighted(Protocol):
    """A proposer that can go on while the target verifies what it drafted."""

    always: bool  # whatever a controller thinks of it

    def ahead(self, further: Sequence[Further]) -> None:
        """Draft on for these sequences, until asked for something else. Comes back at once."""


@runtime_checkable
class Eager(Protocol):
    """A proposer that can set out on a draft before it is asked for it."""

    def set_out(self, ask: Ask) -> None:
        """A draft for this text is likely to be asked for. Comes back as soon as it is begun."""


@runtime_checkable
class Preparing(Protocol):
    """A proposer that can do now what the next draft would take longer for."""

    def prepare(self, ask: Ask) -> None:
        """A device computes, so that this takes nobody's time; the text is not known further."""


@runtime_checkable
class Expecting(Protocol):
    """A proposer that can take a draft for the text until the target has spoken."""

    def expect(self, ask: Ask, draft: Sequence[int]) -> None:
        """A device verifies this draft of the text: what holds of it need not be read again, nor
        what follows it be looked for, in a window as wide as the ask's."""


@runtime_checkable
class Reading(Protocol):
    """A proposer that may read a text without being asked for a draft."""

    def n_unread(self, seq_id: int, tokens: Sequence[int]) -> int:
        """Tokens of a text that it must read before it drafts: without the last one, if that is
        part of a draft."""


@runtime_checkable
class ReadingAlong(Protocol):
    """A proposer whose model can read a prompt while the target does."""

    def read_along(self, ask: Ask) -> None:
        """The target reads the prompt of this ask now. Comes back at once."""


@runtime_checkable
class Watching(Protocol):
    """A proposer whose model can draft while the target goes on without its drafts."""

    def look(self, ask: Ask) -> None:
        """Make a draft that is compared with the text as it comes. Comes back at once."""

    def looked(self, seq_id: int) -> Draft | None:
        """What was drafted for the last look; None: it is still being made."""


class Proposer(Protocol):
    """Proposes tokens cheaply."""

    name: str

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        """One draft per ask, in order; empty where there is nothing to say."""

    def forget(self, seq_id: int) -> None:
        """Another sequence begins in this slot; nothing said about the last one holds."""

    def finish(self, seq_id: int, tokens: Sequence[int]) -> None:
        """The sequence ended with these tokens."""

    def shift(self, seq_id: int, keep: int, discard: int) -> None:
        """tokens[keep : keep + discard] were removed from the sequence."""

    def close(self) -> None:
        """Free what is held."""


@runtime_checkable
class Indexing(Protocol):
    """A proposer that looks things up in the text, and likes to read a prompt before it is asked.

    What it knows of a slot's last text follows the prompt cache: kept as far as that was.
    """

    def begin(self, seq_id: int, tokens: Sequence[int], n_kept: int, owner: str = "") -> None:
        """A sequence begins in this slot; the cache kept the first `n_kept` of its tokens."""

    def read(self, seq_id: int, tokens: Sequence[int]) -> None:
        """The target reads this prompt now: time to index it."""


# Whether an object follows a protocol takes Python longer than to draft with it: asked once a kind.
_followed: dict[tuple[type, type], bool] = {}


def _follows(proposer: object, protocol: type) -> bool:
    key = (type(proposer), protocol)
    found = _followed.get(key)
    if found is None:
        found = _followed[key] = isinstance(proposer, protocol)
    return found


def goes_on(proposer: object) -> TypeGuard[Continuing]:
    """Whether it can draft on from what another one drafted."""
    return _follows(proposer, Continuing)


def looks_ahead(proposer: object) -> TypeGuard[Foresighted]:
    """Whether it can go on while the target verifies."""
    return _follows(proposer, Foresighted)


def provides(proposer: object) -> TypeGuard[Provident]:
    """Whether it may have drafted something already."""
    return _follows(proposer, Provident)


def sets_out(proposer: object) -> TypeGuard[Eager]:
    """Whether it can begin before it is asked."""
    return _follows(proposer, Eager)


def indexes(proposer: object) -> TypeGuard[Indexing]:
    """Whether it likes to read a prompt before it is asked."""
    return _follows(proposer, Indexing)


def reads_along(proposer: object) -> TypeGuard[ReadingAlong]:
    """Whether its model can read a prompt while the target does."""
    return _follows(proposer, ReadingAlong)


def prepares(proposer: object) -> TypeGuard[Preparing]:
    """Whether it can do something for its next draft while a device computes."""
    return _follows(proposer, Preparing)


def expects(proposer: object) -> TypeGuard[Expecting]:
    """Whether it can read a draft while a device verifies it."""
    return _follows(proposer, Expecting)


def watches(proposer: object) -> TypeGuard[Watching]:
    """Whether it can draft while the target goes on without its drafts."""
    return _follows(proposer, Watching)


def reads(proposer: object) -> TypeGuard[Reading]:
    """Whether it may have read on since its last draft."""
    return _follows(proposer, Reading)
