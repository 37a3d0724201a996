"""Suffix lookup: the longest end of the text that occurred before tells what to draft, and how far.

Knows no model; of other sequences, only the texts `finish` handed it, and those only when asked to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from parlay.decoding.draft import NO_DRAFT, Draft
from parlay.errors import BadRequest
from parlay.proposers.match import Match
from parlay.proposers.memory import Memory
from parlay.proposers.occurrences import MAX_MATCH, Occurrences
from parlay.proposers.proposer import Ask
from parlay.proposers.slot_texts import IndexedText

# Runs that are looked up, the longest first; of those found, the places that share most are taken.
_SIZES = (2, 4, 8)
_MAX_TAIL = 64  # tokens of a sequence that are looked for in past texts
# A match of so many is no chance: then one in a past text has to be twice as long to say more.
_LONG = 16


class SuffixProposer(IndexedText):
    """Drafts what most often followed the longest suffix that occurred earlier.

    A match of m tokens carries a draft of up to `factor` * m. A call costs O(new tokens + window),
    whatever the length of the context. Memory: some 50 bytes per token of every slot, kept for the
    next turn up to a bound, and as much per token of `remember_tokens`, which bounds the past texts
    shared by all sequences.
    """

    name = "suffix"
    continues = True

    def __init__(self, min_match: int = 2, factor: float = 1.0, remember_tokens: int = 0) -> None:
        if min_match < 1 or factor <= 0 or remember_tokens < 0:
            raise BadRequest(
                "need min_match >= 1, factor > 0 and remember_tokens >= 0, "
                f"got {min_match}, {factor} and {remember_tokens}"
            )
        self._min_match = min_match
        self._factor = factor
        sizes = (min_match, *(size for size in _SIZES if size > min_match))
        self._past = Memory(remember_tokens, sizes) if remember_tokens else None
        super().__init__(sizes)
        self._owners: dict[int, str] = {}  # by slot

    @property
    def memory(self) -> Memory | None:
        """What earlier answers left; None where nothing is remembered."""
        return self._past

    def open(self, seq_id: int, tokens: Sequence[int], n_kept: int, owner: str = "") -> None:
        self._owners[seq_id] = owner
        super().open(seq_id, tokens, n_kept)

    def finish(self, seq_id: int, tokens: Sequence[int]) -> None:
        """Remember the text if asked to."""
        if self._past is not None:
            self._past.add(self._owners.pop(seq_id, ""), tokens)
        super().finish(seq_id, tokens)

    def close(self) -> None:
        """Past texts go, too."""
        super().close()
        self._past = None

    def _look(self, own: Occurrences, ask: Ask, *, ahead: bool) -> Draft:
        """By the longest suffix that occurred earlier, here or in the past; of equals, or if it is
        long anyway, here: a text that repeats itself goes on with what it said last."""
        length, ends = own.match()
        here = Match(own.text, length, ends) if ends else None
        there = None if self._past is None else self._past.match(ask.owner, own.text[-_MAX_TAIL:])
        if there is None or there.length <= (length if length < _LONG else 2 * length):
            return self._follow(here, ask.window, ahead)
        past = self._follow(there, ask.window, ahead)
        if len(past.tokens) >= self._n_carried(length, ask.window, ahead):
            return past
        return _going_on(past, self._follow(here, ask.window, ahead))

    def _follow(self, match: Match | None, window: int, ahead: bool) -> Draft:
        if match is None:
            return NO_DRAFT
        if ahead:  # as long as it will be with one token more, which is told, too
            match = replace(match, length=min(match.length, MAX_MATCH - 1))
        n_tokens = self._n_carried(match.length, window, ahead)
        tokens, confidence = match.follow(n_tokens + ahead)
        return Draft(tokens, self.name, confidence)

    def _n_carried(self, length: int, window: int, ahead: bool) -> int:
        """Tokens that a match of so many is followed for."""
        return min(window, max(1, int(self._factor * (length + ahead))))


def _going_on(past: Draft, own: Draft) -> Draft:
    """A past text that ends soon, and then a text that repeats itself, where both say the same."""
    n = len(past.tokens)
    if own.tokens[:n] != past.tokens:
        return past
    return replace(own, confidence=past.confidence + own.confidence[n:])
