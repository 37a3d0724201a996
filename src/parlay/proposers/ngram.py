"""Prompt lookup: the last few tokens occurred before, so draft what followed them then.

Knows no model, and nothing of other sequences or of text that has left the context.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from parlay.decoding.draft import NO_DRAFT, Draft
from parlay.errors import BadRequest
from parlay.proposers.proposer import Ask


class NgramProposer:
    """Drafts the continuation of the latest earlier occurrence of the longest known n-gram.

    A call costs O(new tokens + window), whatever the length of the context.
    Memory: a quarter of a kilobyte per token and sequence, given back by `finish` and `forget`.
    """

    name = "ngram"

    def __init__(self, min_match: int = 2, max_match: int = 4) -> None:
        if not 1 <= min_match <= max_match:
            raise BadRequest(f"need 1 <= min_match <= max_match, got {min_match} and {max_match}")
        self._sizes = range(min_match, max_match + 1)
        self._indexes: dict[int, _Index] = {}

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        """One draft per ask, in order."""
        return [self._draft(ask) for ask in asks]

    def forget(self, seq_id: int) -> None:
        """The slot starts over."""
        self._indexes.pop(seq_id, None)

    def finish(self, seq_id: int, tokens: Sequence[int]) -> None:
        """The sequence ended: nothing to learn, but the memory is given back."""
        self.forget(seq_id)

    def shift(self, seq_id: int, keep: int, discard: int) -> None:
        """Every later position moved: index anew, once per `discard` tokens, so O(1) per token."""
        self.forget(seq_id)

    def close(self) -> None:
        """Give all memory back."""
        self._indexes.clear()

    def _draft(self, ask: Ask) -> Draft:
        if ask.window == 0:
            return NO_DRAFT  # the index catches up when it is next needed
        index = self._indexes.get(ask.seq_id)
        if index is None:
            index = self._indexes[ask.seq_id] = _Index(self._sizes)
        match = index.match(ask.tokens)
        if match is None:
            return NO_DRAFT
        size, end = match
        return Draft(
            _continuation(ask.tokens, end, ask.window), self.name, _confidence(size, ask.window)
        )


class _Index:
    """The latest end position of every n-gram of one sequence, but for those that end it now."""

    __slots__ = ("_longest_first", "_n_indexed", "_tables")

    def __init__(self, sizes: range) -> None:
        self._tables: dict[int, dict[tuple[int, ...], int]] = {size: {} for size in sizes}
        self._longest_first = tuple(reversed(self._tables.items()))
        self._n_indexed = 0  # every n-gram that ends at or before this position is in its table

    def match(self, tokens: Sequence[int]) -> tuple[int, int] | None:
        """Size and earlier end position of the longest n-gram that also ends the text."""
        self._catch_up(tokens)
        n = len(tokens)
        for size, table in self._longest_first:
            # A text shorter than the size gives a shorter tuple, which no table holds.
            end = table.get(tuple(tokens[max(n - size, 0) :]))
            if end is not None:
                return size, end
        return None

    def _catch_up(self, tokens: Sequence[int]) -> None:
        """Index all but the last position: the n-grams that end there are what we look for."""
        last = len(tokens) - 1
        for size, table in self._longest_first:
            for end in range(max(self._n_indexed + 1, size), last + 1):
                table[tuple(tokens[end - size : end])] = end
        self._n_indexed = max(self._n_indexed, last)


def _continuation(tokens: Sequence[int], end: int, window: int) -> tuple[int, ...]:
    """What followed position `end`; past the end of the text, the draft goes on copying itself."""
    known = tuple(tokens[end : end + window])
    n_copies = -(-window // len(known))
    return (known * n_copies)[:window]


@cache
def _confidence(size: int, window: int) -> tuple[float, ...]:
    """m / (m + 3) after m matching tokens: each token that proves right makes the match longer.

    A fixed rule that fitted Qwen2 tokens of code, prose and JSON for matches of exactly m tokens.
    A match of the largest size may be longer than it, so there the rule is on the low side.
    """
    return tuple(m / (m + 3) for m in range(size, size + window))
