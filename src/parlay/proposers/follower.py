"""What drafters that read the target's hidden states share: they follow every pass of the target.

States wait here, few at a time, until the drafter takes them into its own cache. Nothing has to
tell it what was accepted: the target's next pass starts where the committed text ends.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from parlay.decoding.draft import Draft
from parlay.decoding.span import Span, common_prefix
from parlay.decoding.states import Fed, StateModel, States
from parlay.proposers.drafting import Drafting, DraftLimits
from parlay.proposers.proposer import Ask, Proposer, Worth

log = logging.getLogger("parlay.proposers")

# So many rows of a sequence may wait; then they are read, even if nobody asks for a draft. More
# than any window: rows of a draft are only read once the target has judged them.
_MOST_WAITING = 64
# Beside a pass of the target so many are read at once: a few, so that they are ready before it is.
_BESIDE = 16


@dataclass(slots=True)
class Followed:
    """One sequence of the target as the drafter knows it."""

    n_read: int = 0  # positions before this one are in the drafter's cache
    tokens: list[int] = field(default_factory=list)  # from there on: read by the target,
    states: list[States] = field(default_factory=list)  # and their states, in as many rows
    text: Sequence[int] = ()  # that the last answer ended with: what is known is of that

    @property
    def n_known(self) -> int:
        return self.n_read + len(self.tokens)

    def add(self, tokens: Sequence[int], states: States) -> None:
        self.tokens.extend(tokens)
        self.states.append(states)

    def cut(self, length: int) -> None:
        """Forget what waits from position `length` on."""
        n = max(0, length - self.n_read)
        del self.tokens[n:]
        self.states = [self.rows(n)] if n and self.states else []

    def rows(self, n: int) -> States:
        """The first n states that wait."""
        return np.concatenate(self.states)[:n]

    def took(self, n: int) -> None:
        """The drafter has read the first n of them."""
        left = len(self.tokens) - n
        self.states = [np.concatenate(self.states)[n:]] if left else []
        del self.tokens[:n]
        self.n_read += n


class Follower(Proposer):
    """A proposer whose drafter reads states. Subclasses say how rows are fed, and draft."""

    block_size: int | None = None  # rows of a block, where it drafts a whole one in a pass
    longest: int | None = None  # tokens of its longest draft, where it can draft only so many

    def __init__(self, model: StateModel, limits: DraftLimits, name: str) -> None:
        self.name = name
        self.layers = model.layers  # of the target; see `StateModel`
        self._model = model
        self._limits = limits
        self._slots: dict[int, Followed] = {}

    # -- following the target -------------------------------------------------

    def follow(self, spans: Sequence[Span], states: Sequence[States]) -> None:
        """The target has read these spans. A fault of the drafter must not become the target's."""
        try:
            for span, rows in zip(spans, states, strict=True):
                self._follow(span, rows)
        except Exception as error:
            log.warning("the drafter %s lost its place and starts over: %s", self.name, error)
            self._reset()

    def _follow(self, span: Span, states: States) -> None:
        slot = self._slot(span.seq_id)
        self._cut(span.seq_id, span.start)
        if slot.n_known < span.start:
            # It was not there when the target read what comes before, and does without it.
            self._model.clear(span.seq_id)
            slot.n_read, slot.tokens, slot.states = span.start, [], []
        if len(slot.tokens) > _MOST_WAITING:
            self._read_ahead(span.seq_id, slot, span.tokens[0])
        slot.add(span.tokens, states)

    def meanwhile(self, ask: Ask, draft: Sequence[int]) -> None:
        """A device computes, and nobody asks for drafts: what waits is read before it is much. The
        text that is judged already ends with the first token of the pass under way."""
        n_judged, slot = len(ask.tokens) - 1, self._slot(ask.seq_id)
        try:
            self._cut(ask.seq_id, n_judged)
            if len(slot.tokens) >= _BESIDE and slot.n_known == n_judged:
                self._read_ahead(ask.seq_id, slot, ask.tokens[-1])
        except Exception:
            self._reset()  # what the cache holds now is unknown
            raise

    def n_unread(self, seq_id: int, tokens: Sequence[int]) -> int:
        return max(1, len(tokens) - self._slot(seq_id).n_read)

    def _read_ahead(self, seq_id: int, slot: Followed, following: int) -> None:
        """Take in what waits; `following` is the token after it."""
        tokens = [*slot.tokens[1:], following]
        self._take_in([Fed(seq_id, slot.n_read, slot.rows(len(tokens)), tokens)])
        slot.took(len(tokens))

    @abstractmethod
    def _take_in(self, fed: Sequence[Fed]) -> None:
        """Read states into the drafter's cache; `tokens` are those that follow each of them."""

    def _position(self, n: int) -> int:
        """Where the drafter's cache holds the target's position n."""
        return n

    def _cut(self, seq_id: int, length: int) -> None:
        """Forget everything from the target's position `length` on."""
        slot = self._slot(seq_id)
        if length < slot.n_read:
            self._model.truncate(seq_id, self._position(length))
            slot.n_read = length
        if length < slot.n_known:
            slot.cut(length)

    def _slot(self, seq_id: int) -> Followed:
        slot = self._slots.get(seq_id)
        if slot is None:
            slot = self._slots[seq_id] = Followed()
        return slot

    def leave(self, seq_id: int) -> None:
        """Forget a sequence: the target read on without telling."""
        if self._slots.pop(seq_id, None) is not None:
            self._model.clear(seq_id)

    def start_over(self) -> None:
        """Forget every sequence: passes went by that it was not told of."""
        self._reset()

    def _reset(self) -> None:
        for seq_id in self._slots:
            self._model.clear(seq_id)
        self._slots.clear()

    # -- the proposer's protocol ----------------------------------------------

    def draft(self, asks: Sequence[Ask], worth: Worth | None = None) -> list[Draft]:
        drafting = [Drafting(ask, self._limits, rated=worth is not None) for ask in asks]
        try:
            ready = [d for d in drafting if self._is_ready(d.ask)]
            if ready:  # llama.cpp batches neighbouring sequences only if their ids come in order
                self._extend_all(sorted(ready, key=lambda d: d.ask.seq_id), worth)
        except Exception:
            self._reset()  # what the cache holds now is unknown
            raise
        return [d.draft(self.name) for d in drafting]

    @abstractmethod
    def _extend_all(self, drafting: list[Drafting], worth: Worth | None) -> None:
        """Draft for each; what it leaves in the cache may be anything if it fails."""

    def _is_ready(self, ask: Ask) -> bool:
        """Whether it has seen the target read up to the last token, and there is room."""
        n_read = len(ask.tokens) - 1  # by the target
        self._cut(ask.seq_id, n_read)
        known = self._slot(ask.seq_id).n_known == n_read > 0
        return known and ask.window > 0 and len(ask.tokens) + 1 <= self._model.context_size

    # -- to be timed ----------------------------------------------------------

    def rehearse_reading(self, n: int) -> None:
        """Read n states of nothing. The first sequence is forgotten over it."""
        self._rehearse(n, 0)

    def rehearse_drafting(self, n: int) -> None:
        """Draft n tokens after one token of nothing."""
        self._rehearse(1, n)

    def _rehearse(self, n_read: int, n_drafted: int) -> None:
        tokens = [0] * n_read
        states = np.zeros((n_read, self._model.width), np.float32)
        self._reset()
        self._slot(0).add(tokens, states)
        if n_drafted:
            self.draft([Ask(0, [*tokens, 0], n_drafted)])
        else:
            self._read_ahead(0, self._slot(0), 0)
        self._reset()

    def open(self, seq_id: int, tokens: Sequence[int], n_kept: int, owner: str = "") -> None:
        """The cache may share a prefix with what comes next, as the target's does. But what that
        kept may have come from RAM, and be of a text that was not followed last."""
        n_shared = common_prefix(self._slot(seq_id).text, tokens)
        self._cut(seq_id, min(n_kept, n_shared))

    def finish(self, seq_id: int, tokens: Sequence[int]) -> None:
        """The cache stays for the next turn."""
        self._slot(seq_id).text = tokens

    def cut(self, seq_id: int, keep: int, gone: int) -> None:
        """Move what the target moved; a cache that cannot is cut, and goes on after the gap."""
        slot = self._slot(seq_id)
        if slot.n_read >= keep + gone and self._model.can_shift:
            at = self._position(keep)
            self._model.shift(seq_id, at, gone)
            slot.n_read -= gone
        else:
            self._cut(seq_id, keep)

    def close(self) -> None:
        self._model.close()
