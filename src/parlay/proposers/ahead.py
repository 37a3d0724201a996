"""Draft ahead: a draft model on a thread of its own goes on while the target verifies its draft.

Knows the draft model, not the target. The drafter takes its own next token for the target's, and
drafts on from there. Nobody tells it what was accepted: it looks at the text. The drafter's context
has one owner at a time: the thread while it drafts, or whoever waits for what it is asked for.
Before the first time there is no thread.

Where the last answer was drafted ahead for, the next prompt is read while the target reads it, and
the answer's first draft is made: the drafter takes its own first token for the target's. Whatever
is asked of the drafter comes first: it is called back within one pass, and what is left unread is
caught up with as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Lock
from time import perf_counter
from typing import TypeVar

from parlay.decoding.draft import NO_DRAFT, Draft, Ready
from parlay.proposers.draft_model import DraftModel
from parlay.proposers.drafting import Drafting
from parlay.proposers.own_thread import OwnThread
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

    def next(self, can_go_on: Callable[[Drafting], bool]) -> list[Drafting]:
        """The drafts to take one more step on; none: it has ended, and no other is added."""
        with self.lock:
            ways = [] if self.called_back else [way for way in self.ways if way.leads_on]
            found = [way.chain for way in ways if can_go_on(way.chain)]
            self.ended = not found
        return found

    def turn_to(self, ways: Sequence[_Way]) -> bool:
        """Go these ways from now on; False: too late, it has ended."""
        with self.lock:
            self.ways = ways
            return not (self.ended or self.called_back)


@dataclass(slots=True)
class _Reading:
    """A prompt, and how far the thread has read it."""

    ask: Ask  # for the answer's first draft
    text: Sequence[int]  # the same, as it grows
    n_read: int = 0
    seconds: float = 0.0  # so far; only the thread adds to it
    told_s: float = 0.0  # of them, those that were told
    called_back: bool = False
    ended: bool = False
    looks: bool = False  # nobody wants the draft, only to know whether it comes
    draft: Draft | None = None  # of a look, once it is made

    @property
    def under_way(self) -> bool:
        return not (self.called_back or self.ended)

    def tell(self) -> float:
        """Seconds since the last time."""
        before, self.told_s = self.told_s, self.seconds
        return self.told_s - before


class DraftAhead:
    """A draft model that may go on while the target verifies, and read while it reads."""

    continues = True

    def __init__(self, drafter: DraftModel, *, always: bool = False) -> None:
        """`always`: whatever a controller thinks of it."""
        self.name = drafter.name
        self.always = always
        self.drafter = drafter
        self._thread: OwnThread | None = None
        self._walk = _Walk((), ended=True)
        self._failure: Exception | None = None
        self._readings: dict[int, _Reading] = {}  # by sequence
        self._followed: set[int] = set()  # sequences that it has drafted ahead for
        self._pays = always  # whether the last answer it had a part in was one of those
        self._window = 0  # the most tokens that a draft for that one might have had

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
        return self.drafter.propose(asks, runs_on=self.always or all(ask.ahead for ask in asks))

    def set_out(self, ask: Ask) -> None:
        """Begin a draft that is likely to be asked for. Nobody waits for what the thread is in the
        middle of: if that is of use it goes on, else it begins as soon as its pass has ended."""
        reads = any(reading.under_way for reading in self._readings.values())
        chain = self.drafter.chain(ask.seq_id)
        if reads or self._failure is not None:
            return
        if self._walk.ended:
            self._call(partial(self._set_out, ask))
        elif chain is None or chain.contradicts(ask.tokens):
            self._walk.called_back = True
            self._own().hand(partial(self._set_out, ask))

    def _set_out(self, ask: Ask) -> None:
        try:
            self.drafter.set_out(ask)
        except Exception as error:  # told to whoever asks next
            self._failure = error

    def ahead(self, further: Sequence[Further]) -> None:
        """Draft on for these sequences, until asked for something else. Comes back at once."""
        ways = [way for each in further if (way := self._way(each)) is not None]
        for each in further:
            widest = self._window if each.seq_id in self._followed else 0
            self._window = max(widest, each.window)
            self._followed.add(each.seq_id)
        if ways and not self._walk.turn_to(ways):
            self._stop_reading()  # a prompt can wait, the pass ends soon
            self._walk = _Walk(ways)
            self._own().hand(partial(self._go, self._walk))

    def read_along(self, ask: Ask) -> None:
        """The target reads this prompt now, and so does the drafter, if it is likely to be asked.
        Comes back at once; told again, it goes on where it was called back."""
        last = self._readings.get(ask.seq_id)
        under_way = last is not None and not last.called_back
        if self._pays and not under_way and self._failure is None and self._has_room(ask.tokens):
            self._begin_reading(replace(ask, window=self._window), looks=False)

    def look(self, ask: Ask) -> None:
        """Draft for this text while the target goes on, only to be compared with what comes. Comes
        back at once."""
        last = self._readings.get(ask.seq_id)
        if last is not None:
            last.called_back = True
        if ask.bound or self._failure is not None or not self._has_room(ask.tokens):
            n_read = 0 if last is None else last.n_read  # there is nothing to see
            nothing = _Reading(ask, ask.tokens, n_read, called_back=True, draft=NO_DRAFT)
            self._readings[ask.seq_id] = nothing
        else:
            self._begin_reading(ask, looks=True)

    def looked(self, seq_id: int) -> Draft | None:
        """What was drafted for the last look; None: it is still being made."""
        reading = self._readings.get(seq_id)
        return NO_DRAFT if reading is None else reading.draft

    def _begin_reading(self, ask: Ask, *, looks: bool) -> None:
        last = self._readings.get(ask.seq_id)
        n_read = 0 if last is None else last.n_read
        made = _Reading(replace(ask, tokens=list(ask.tokens)), ask.tokens, n_read, looks=looks)
        self._readings[ask.seq_id] = made
        self._own().hand(partial(self._read, made))

    def _has_room(self, tokens: Sequence[int]) -> bool:
        return len(tokens) < self.drafter.passes.context_size

    def n_unread(self, seq_id: int, tokens: Sequence[int]) -> int:
        """Tokens of a text that were not read beside the target, the last one among them."""
        reading = self._readings.get(seq_id)
        return len(tokens) - (0 if reading is None else reading.n_read)

    def _way(self, further: Further) -> _Way | None:
        chain = self.drafter.chain(further.seq_id)
        if chain is None or chain.ask.bound:
            return None
        # The target's own next token comes first: its guess is not part of the next draft.
        n_most = chain.n_past + further.n_verified + 1 + further.window
        return _Way(chain, further.tokens, n_most)

    def ready(self, seq_id: int, tokens: Sequence[int]) -> Ready:
        """What is drafted already for a text; what was drafted ahead is told once."""
        found, reading = self.drafter.ready(seq_id, tokens), self._readings.get(seq_id)
        read_s = 0.0 if reading is None else reading.tell()
        return replace(found, read_s=read_s) if read_s else found

    def forget(self, seq_id: int) -> None:
        self._leave(seq_id)
        self._call(lambda: self.drafter.forget(seq_id))

    def finish(self, seq_id: int, tokens: Sequence[int]) -> None:
        self._walk.called_back = True  # whatever it drafts, this text has ended
        if self._leave(seq_id) or self.drafter.chain(seq_id) is not None:
            self._pays = self.always or seq_id in self._followed
        self._followed.discard(seq_id)
        self.drafter.finish(seq_id, tokens)

    def _leave(self, seq_id: int) -> bool:
        """Read a prompt no further; whether it was read at all."""
        reading = self._readings.pop(seq_id, None)
        if reading is not None:
            reading.called_back = True
        return reading is not None

    def shift(self, seq_id: int, keep: int, discard: int) -> None:
        self._leave(seq_id)  # what it says of its cache holds no more
        self._call(lambda: self.drafter.shift(seq_id, keep, discard))

    def close(self) -> None:
        """End the thread within one pass, then free the drafter."""
        self._call_back()
        if self._thread is not None:
            self._thread.close()
            self._thread = None
        self.drafter.close()

    # -- its thread -----------------------------------------------------------

    def _go(self, walk: _Walk) -> None:
        try:
            while chains := walk.next(self.drafter.can_go_on):
                self.drafter.go_on(chains)
        except Exception as error:  # told to whoever asks next
            walk.called_back = True
            self._failure = error

    def _read(self, reading: _Reading) -> None:
        steps, started = self._reading_steps(reading), perf_counter()
        try:
            while not reading.called_back and (n_read := next(steps, None)) is not None:
                reading.n_read, now = n_read, perf_counter()
                reading.seconds, started = reading.seconds + now - started, now
        except Exception as error:
            reading.called_back, reading.n_read = True, 0
            self._failure = error
        if reading.looks:
            chain = self.drafter.chain(reading.ask.seq_id)
            own = chain is not None and chain.ask is reading.ask
            reading.draft = chain.draft(self.name) if chain is not None and own else NO_DRAFT
        reading.ended = True

    def _reading_steps(self, reading: _Reading) -> Iterator[int]:
        """One pass at a step: over the prompt, then for the answer's first draft."""
        ask = reading.ask
        yield from self.drafter.read(ask)
        chain = self.drafter.chain(ask.seq_id)
        if chain is None or ask.bound:
            return
        way = _Way(chain, reading.text, ask.window if reading.looks else 1 + ask.window)
        while self._leads_on(way, reading) and self.drafter.can_go_on(chain):
            self.drafter.go_on([chain])
            yield reading.n_read

    def _leads_on(self, way: _Way, reading: _Reading) -> bool:
        """Whoever only looks may be behind the text, and tells as much."""
        if not reading.looks:
            return way.leads_on
        return len(way.chain.tokens) < way.n_most and not way.chain.contradicts(way.text)

    def _call_back(self) -> None:
        self._walk.called_back = True
        self._stop_reading()

    def _stop_reading(self) -> None:
        for reading in self._readings.values():
            reading.called_back = True

    def _own(self) -> OwnThread:
        if self._thread is None:
            self._thread = OwnThread(THREAD)
        return self._thread

    def _call(self, function: Callable[[], Result]) -> Result:
        """Call the thread back, and do it as soon as its pass has ended."""
        if self._thread is None:
            return function()
        self._call_back()
        return self._thread.call(function)
