"""Draft ahead: a draft model on a thread of its own goes on while the target verifies its draft.

Knows the draft model, not the target. The drafter takes its own next token for the target's, and
drafts on from there. Nobody tells it what was accepted: it looks at the text. From the first time
on, only its thread calls the drafter's context; before that there is no thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import TypeVar

from parlay.decoding.draft import Draft, Ready
from parlay.proposers.draft_model import DraftModel
from parlay.proposers.drafting import Drafting
from parlay.proposers.proposer import Ask, Further

THREAD = "parlay-drafter"
Result = TypeVar("Result")


@dataclass(slots=True)
class _Way:
    """A draft that is gone on with, and how far."""

    chain: Drafting
    text: Sequence[int]  # what is committed, as it grows
    n_most: int  # tokens of the chain

    @property
    def leads_on(self) -> bool:
        """Whether another token may be of use: the text has not gone another way."""
        return len(self.chain.tokens) < self.n_most and self.chain.n_agreed(self.text) is not None


@dataclass(slots=True)
class _Walk:
    """One run of the thread, until it has gone far enough or is called back."""

    ways: Sequence[_Way]
    called_back: bool = False
    ended: bool = False
    lock: Lock = field(default_factory=Lock)

    def next(self) -> list[_Way]:
        """The ways to take one more step on; none: it has ended, and no other is added."""
        with self.lock:
            found = [] if self.called_back else [way for way in self.ways if way.leads_on]
            self.ended = not found
        return found

    def turn_to(self, ways: Sequence[_Way]) -> bool:
        """Go these ways from now on; False: too late, it has ended."""
        with self.lock:
            self.ways = ways
            return not (self.ended or self.called_back)


class DraftAhead:
    """A draft model that may go on while the target verifies."""

    continues = True

    def __init__(self, drafter: DraftModel, *, always: bool = False) -> None:
        """`always`: whatever a controller thinks of it."""
        self.name = drafter.name
        self.always = always
        self.drafter = drafter
        self._thread: ThreadPoolExecutor | None = None
        self._walk = _Walk((), ended=True)
        self._failure: Exception | None = None

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        made = [self.drafter.made(ask) for ask in asks]
        found = [draft for draft in made if draft is not None]
        if len(found) == len(asks) and self._failure is None:
            return found  # nothing is waited for, and the thread goes on
        return self._call(partial(self._propose, asks))

    def _propose(self, asks: Sequence[Ask]) -> list[Draft]:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        return self.drafter.propose(asks)

    def ahead(self, further: Sequence[Further]) -> None:
        """Draft on for these sequences, until asked for something else. Comes back at once."""
        ways = [way for each in further if (way := self._way(each)) is not None]
        if ways and not self._walk.turn_to(ways):
            self._walk = _Walk(ways)
            self._submit(partial(self._go, self._walk))

    def _way(self, further: Further) -> _Way | None:
        chain = self.drafter.chain(further.seq_id)
        if chain is None or chain.ask.rejection or chain.ask.constraint is not None:
            return None
        # The target's own next token comes first: its guess is not part of the next draft.
        n_most = chain.n_past + further.n_verified + 1 + further.window
        return _Way(chain, further.tokens, n_most)

    def ready(self, seq_id: int, tokens: Sequence[int]) -> Ready:
        """What is drafted already for a text; what was drafted ahead is told once."""
        return self.drafter.ready(seq_id, tokens)

    def forget(self, seq_id: int) -> None:
        self._call(lambda: self.drafter.forget(seq_id))

    def finish(self, seq_id: int, tokens: Sequence[int]) -> None:
        self._walk.called_back = True  # whatever it drafts, this text has ended
        self.drafter.finish(seq_id, tokens)

    def shift(self, seq_id: int, keep: int, discard: int) -> None:
        self._call(lambda: self.drafter.shift(seq_id, keep, discard))

    def close(self) -> None:
        """End the thread within one pass, then free the drafter."""
        self._walk.called_back = True
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
        self.drafter.close()

    # -- its thread -----------------------------------------------------------

    def _go(self, walk: _Walk) -> None:
        try:
            while ways := walk.next():
                chains = [way.chain for way in ways if self.drafter.can_go_on(way.chain)]
                if not chains:
                    walk.called_back = True
                else:
                    self.drafter.go_on(chains)
        except Exception as error:  # told to whoever asks next
            walk.called_back = True
            self._failure = error

    def _submit(self, function: Callable[[], Result]) -> Future[Result]:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix=THREAD)
        return self._thread.submit(function)

    def _call(self, function: Callable[[], Result]) -> Result:
        """Let the owner of the context do it, as soon as its pass has ended."""
        if self._thread is None:
            return function()
        self._walk.called_back = True
        return self._submit(function).result()
