"""Lookup: the longest end of the text that occurred before tells what to draft, and how far.

Knows no model; of other sequences, only the texts `finish` handed it, and those only when asked to.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from parlay.decoding.draft import NO_DRAFT, Draft
from parlay.decoding.span import common_prefix
from parlay.errors import BadRequest
from parlay.proposers.index import MAX_MATCH, Index, Match
from parlay.proposers.memory import Memory
from parlay.proposers.proposer import Ask, Proposer, Worth

# Runs that are looked up, the longest first; of those found, the places that share most are taken.
_SIZES = (2, 4, 8)
_MAX_TAIL = 64  # tokens of a sequence that are looked for in past texts
# A match of so many is no chance: then one in a past text has to be twice as long to say more.
_LONG = 16
# Tokens of ended sequences that all slots together may keep: some 50 MB.
MAX_KEPT = 1 << 20


class Lookup(Proposer):
    """Drafts what most often followed the longest suffix that occurred earlier.

    A match of m tokens carries a draft of up to `factor` * m. A call costs O(new tokens + window),
    whatever the length of the context. Memory: some 50 bytes per token of every slot, kept for the
    next turn up to a bound, and as much per token of `remember_tokens`, which bounds the past texts
    shared by all sequences.
    """

    name = "suffix"
    free = True
    continues = True

    def __init__(self, min_match: int = 2, factor: float = 1.0, remember_tokens: int = 0) -> None:
        if min_match < 1 or factor <= 0 or remember_tokens < 0:
            raise BadRequest(
                "need min_match >= 1, factor > 0 and remember_tokens >= 0, "
                f"got {min_match}, {factor} and {remember_tokens}"
            )
        self._factor = factor
        self._sizes = (min_match, *(size for size in _SIZES if size > min_match))
        # What earlier answers left; None where nothing is remembered.
        self.memory = Memory(remember_tokens, self._sizes) if remember_tokens else None
        self._texts: dict[int, Index] = {}  # by slot
        self._expected: dict[int, int] = {}  # slots whose index has a draft behind so many tokens
        self._foreseen: dict[int, _Foreseen] = {}  # by slot
        self._owners: dict[int, str] = {}  # by slot
        self._ended: dict[int, int] = {}  # slots without a sequence, and their tokens; oldest first

    # -- a text begins, goes on and ends ------------------------------------------

    def open(self, seq_id: int, tokens: Sequence[int], n_kept: int, owner: str = "") -> None:
        """Keep what the slot's last text shares with this one, up to what the cache kept."""
        self._owners[seq_id] = owner
        self._ended.pop(seq_id, None)
        self._expected.pop(seq_id, None)  # what was expected is compared with the rest
        self._foreseen.pop(seq_id, None)
        text = self._texts.get(seq_id)
        n_shared = 0 if text is None else _shared(text.text, tokens, n_kept)
        # To take back takes as long as to read: where little stays, that little is read again.
        if text is None or 2 * n_shared < len(text):
            self._texts[seq_id] = Index(self._sizes)
        else:
            text.cut(n_shared)

    def meanwhile(self, ask: Ask, draft: Sequence[int]) -> None:
        """Index a prompt, or a draft as if it held, and look what would follow: to look takes a
        round's time only where the text went another way."""
        text = self._text(ask.seq_id, ask.tokens)
        if draft:
            self._expected[ask.seq_id] = len(text)
            text.feed(draft)
        self._foreseen.pop(ask.seq_id, None)
        if ask.window:
            found = self._look(text, ask, ahead=True)
            self._foreseen[ask.seq_id] = _Foreseen(len(ask.tokens), tuple(draft), found)

    def finish(self, seq_id: int, tokens: Sequence[int]) -> None:
        """Remember the text if asked to; it stays for the next turn while there is room."""
        self._foreseen.pop(seq_id, None)
        owner = self._owners.pop(seq_id, "")
        if self.memory is not None:
            self.memory.add(owner, tokens)
        if seq_id in self._texts:
            self._ended.pop(seq_id, None)
            self._ended[seq_id] = len(self._texts[seq_id])
        while sum(self._ended.values()) > MAX_KEPT:
            self._drop(next(iter(self._ended)))

    def cut(self, seq_id: int, keep: int, gone: int) -> None:
        """Every later position moved: index anew, once per `gone` tokens, so O(1) per token."""
        self._drop(seq_id)

    def close(self) -> None:
        """Give all memory back, past texts included."""
        for kept in (self._texts, self._expected, self._foreseen, self._owners, self._ended):
            kept.clear()
        self.memory = None

    def _drop(self, seq_id: int) -> None:
        for kept in (self._texts, self._expected, self._foreseen, self._ended):
            kept.pop(seq_id, None)

    def _text(self, seq_id: int, tokens: Sequence[int]) -> Index:
        """The index of a sequence, brought up to its last token."""
        text = self._texts.get(seq_id)
        if text is None:
            text = self._texts[seq_id] = Index(self._sizes)
        n = self._expected.pop(seq_id, None)
        if n is not None:  # a draft stands there: what holds of it stays
            text.cut(n + common_prefix(text.text[n:], tokens[n:]))
        if len(text) < len(tokens):
            text.feed(tokens[len(text) :])
        return text

    # -- drafting -----------------------------------------------------------------

    def draft(self, asks: Sequence[Ask], worth: Worth | None = None) -> list[Draft]:
        return [self._draft(ask) for ask in asks]

    def _draft(self, ask: Ask) -> Draft:
        """What follows a text: as it was foreseen, or looked for now."""
        if ask.window == 0:
            return NO_DRAFT  # the index catches up when it is next needed
        foreseen = self._foreseen.pop(ask.seq_id, None)
        known = None if foreseen is None else foreseen.rest(ask)
        if known is not None:
            return known
        text = self._text(ask.seq_id, ask.tokens)
        try:
            return self._look(text, ask, ahead=False)
        finally:
            text.cut(len(ask.tokens) - ask.n_ahead)  # what another drafted is not the text yet

    def _look(self, own: Index, ask: Ask, *, ahead: bool) -> Draft:
        """By the longest suffix that occurred earlier, here or in the past; of equals, or if it is
        long anyway, here: a text that repeats itself goes on with what it said last.

        `ahead`: the target's own token, and then what would be drafted if it said that."""
        length, ends = own.match()
        here = Match(own.text, length, ends) if ends else None
        past = None
        if self.memory is not None:
            past = self.memory.match(ask.owner, own.text[-_MAX_TAIL:])
        if past is None or past.length <= (length if length < _LONG else 2 * length):
            return self._follow(here, ask.window, ahead)
        there = self._follow(past, ask.window, ahead)
        n = len(there.tokens)
        if here is not None and n < self._n_carried(length, ask.window, ahead):
            # A past text that ends soon, and then this one, where both say the same until then.
            further = self._follow(here, ask.window, ahead)
            if further.tokens[:n] == there.tokens:
                return replace(further, confidence=there.confidence + further.confidence[n:])
        return there

    def _follow(self, match: Match | None, window: int, ahead: bool) -> Draft:
        if match is None:
            return NO_DRAFT
        if ahead:  # as long as it will be with one token more, which is told, too
            match = replace(match, length=min(match.length, MAX_MATCH - 1))
        tokens, confidence = match.follow(self._n_carried(match.length, window, ahead) + ahead)
        return Draft(tokens, self.name, confidence)

    def _n_carried(self, length: int, window: int, ahead: bool) -> int:
        """Tokens that a match of so many is followed for."""
        return min(window, max(1, int(self._factor * (length + ahead))))


@dataclass(frozen=True, slots=True)
class _Foreseen:
    """What was found for a text and a draft of it, before the target had said its own token."""

    n_text: int  # tokens of the text
    draft: tuple[int, ...]
    found: Draft  # the target's own token first

    def rest(self, ask: Ask) -> Draft | None:
        """The draft for a text that went on so; None: it did not, or nothing was found."""
        tokens, n_held, found = ask.tokens, self.n_text + len(self.draft), self.found
        if len(tokens) != n_held + 1 or len(found.tokens) < 2 or tokens[-1] != found.tokens[0]:
            return None
        if ask.n_ahead or self.draft != tuple(tokens[self.n_text : n_held]):
            return None
        last = 1 + ask.window
        return Draft(found.tokens[1:last], found.proposer, found.confidence[1:last])


def _shared(text: array[int], tokens: Sequence[int], most: int) -> int:
    """Tokens that both begin with, at most so many."""
    n = min(len(text), len(tokens), most)
    differs = np.array(text[:n]) != np.array(tokens[:n], np.int32)
    return int(differs.argmax()) if differs.any() else n
