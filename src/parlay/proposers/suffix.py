"""Suffix lookup: the longest end of the text that occurred before tells what to draft, and how far.

Knows no model; of other sequences, only the texts `finish` handed it, and those only when asked to.

The text lives in an online suffix automaton. A state stands for all substrings that occur at the
same places; its link leads to their longest suffix that occurs at more places. So the link of the
state of the whole text is the longest suffix that occurred earlier, and nothing is searched for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parlay.decoding.draft import NO_DRAFT, Draft
from parlay.errors import BadRequest
from parlay.proposers.proposer import Ask

_ROOT = 0  # the state of the empty string; its link leads to itself
# A new token follows every suffix of the text: one state per link on the way to the root. Those are
# few in text (4 on average, at most 12 in 32k tokens of C++), but n in a run of n equal tokens. So
# counting stops after this many: time per token is bounded, and the suffixes left uncounted are the
# shortest ones of very repetitive text, where a longer one matches.
_MAX_COUNTED = 32
# How much of a text is matched anew against past texts once those have changed.
_MAX_REREAD = 64
# Weight of doubt in a confidence, and its size on Qwen2 tokens of code, prose and JSON: 0.25, 0.37,
# 0.49, 0.56 of the tokens proved right that had followed a match of 1, 2, 3, 4 tokens once of once.
_DOUBT = 3.0


class SuffixProposer:
    """Drafts what most often followed the longest suffix that occurred earlier.

    A match of m tokens carries a draft of up to `factor` * m. A call costs O(new tokens + window)
    amortised, whatever the length of the context. Memory: half a kilobyte per token and sequence,
    given back by `finish` and `forget`, and as much per token of `remember_tokens`, which bounds
    the past texts shared by all sequences.
    """

    name = "suffix"

    def __init__(self, min_match: int = 2, factor: float = 1.0, remember_tokens: int = 0) -> None:
        if min_match < 1 or factor <= 0 or remember_tokens < 0:
            raise BadRequest(
                "need min_match >= 1, factor > 0 and remember_tokens >= 0, "
                f"got {min_match}, {factor} and {remember_tokens}"
            )
        self._min_match = min_match
        self._factor = factor
        self._past = _Past(remember_tokens) if remember_tokens else None
        self._sequences: dict[int, _Sequence] = {}

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        """One draft per ask, in order."""
        return [self._draft(ask) for ask in asks]

    def forget(self, seq_id: int) -> None:
        """The slot starts over."""
        self._sequences.pop(seq_id, None)

    def finish(self, seq_id: int, tokens: Sequence[int]) -> None:
        """The sequence ended: remember its text if asked to, and give its memory back."""
        if self._past is not None:
            self._past.add(tokens)
        self.forget(seq_id)

    def shift(self, seq_id: int, keep: int, discard: int) -> None:
        """An automaton cannot unlearn: build anew, once per `discard` tokens, so O(1) per token."""
        self.forget(seq_id)

    def close(self) -> None:
        """Give all memory back, past texts included."""
        self._sequences.clear()
        self._past = None

    def _draft(self, ask: Ask) -> Draft:
        if ask.window == 0:
            return NO_DRAFT  # the automaton catches up when it is next needed
        sequence = self._sequences.get(ask.seq_id)
        if sequence is None:
            sequence = self._sequences[ask.seq_id] = _Sequence(self._past)
        match = sequence.longest_suffix(ask.tokens)
        if match.length < self._min_match:
            return NO_DRAFT
        n_tokens = min(ask.window, max(1, int(self._factor * match.length)))
        tokens, confidence = match.automaton.follow(match, n_tokens)
        return Draft(tokens, self.name, confidence)


class _Sequence:
    """One sequence: its own automaton, and its place in the past texts where there are any."""

    __slots__ = ("_automaton", "_reader")

    def __init__(self, past: _Past | None) -> None:
        self._automaton = SuffixAutomaton()
        self._reader = None if past is None else _Reader(past)

    def longest_suffix(self, tokens: Sequence[int]) -> Match:
        """The longest suffix that occurred earlier, here or in the past; of equals, here."""
        self._automaton.feed(tokens[self._automaton.n_tokens :])
        own = self._automaton.longest_suffix()
        past = None if self._reader is None else self._reader.longest_suffix(tokens)
        return own if past is None or past.length <= own.length else past


class _Past:
    """Past texts up to a bound, in two generations: the older goes when the newer is full."""

    def __init__(self, max_tokens: int) -> None:
        self._half = max_tokens // 2
        self.older, self.newer = SuffixAutomaton(), SuffixAutomaton()
        self.version = 0

    def add(self, tokens: Sequence[int]) -> None:
        """Learn a text: its end, where the whole of it is too long."""
        kept = tokens[max(0, len(tokens) - self._half) :]
        if self.newer.n_tokens + len(kept) > self._half:
            self.older, self.newer = self.newer, SuffixAutomaton()
        self.newer.feed(kept)
        self.newer.end_text()
        self.version += 1

    def entries(self) -> list[tuple[SuffixAutomaton, int, int]]:
        """Where reading begins: automaton, state, and length of the match there."""
        return [(self.newer, _ROOT, 0), (self.older, _ROOT, 0)]


class _Reader:
    """Follows one sequence through the past texts, token by token."""

    __slots__ = ("_at", "_n_read", "_past", "_version")

    def __init__(self, past: _Past) -> None:
        self._past = past
        self._version = past.version
        self._n_read = 0
        self._at = past.entries()

    def longest_suffix(self, tokens: Sequence[int]) -> Match | None:
        """The longest suffix of the sequence that a past text went on from."""
        self._catch_up(tokens)
        matches = (automaton.match_at(state, length) for automaton, state, length in self._at)
        return max(filter(None, matches), key=lambda match: match.length, default=None)

    def _catch_up(self, tokens: Sequence[int]) -> None:
        start = max(0, len(tokens) - _MAX_REREAD)
        # States of a changed automaton may stand for other substrings than when they were reached.
        if self._version != self._past.version or self._n_read < start:
            self._version, self._n_read, self._at = self._past.version, start, self._past.entries()
        for token in tokens[self._n_read :]:
            self._at = [(a, *a.advance(state, length, token)) for a, state, length in self._at]
        self._n_read = len(tokens)


@dataclass(frozen=True, slots=True)
class Match:
    """Where the end of a text occurred earlier."""

    automaton: SuffixAutomaton
    state: int
    length: int  # tokens that match
    n_seen: int  # earlier occurrences


class SuffixAutomaton:
    """Every substring of the texts fed to it, how often it occurred and what mostly followed it.

    Linear in the tokens fed, in time (amortised) and in memory: at most two states and three
    transitions per token.
    """

    __slots__ = ("_count", "_last", "_length", "_likely", "_link", "_next", "n_tokens")

    def __init__(self) -> None:
        self.n_tokens = 0
        self._last = _ROOT  # the state of the whole current text
        self._length = [0]  # of the longest substring of the state
        self._link = [_ROOT]
        self._next: list[dict[int, int]] = [{}]
        self._count = [0]  # occurrences, the one that ends the text included
        # The most frequent next token, of equals the latest; None where a text ended.
        self._likely: list[int | None] = [None]

    def feed(self, tokens: Sequence[int]) -> None:
        """Append to the current text."""
        for token in tokens:
            before = self._last
            self._last = self._append(before, token)
            self._count_occurrence(before, token)
        self.n_tokens += len(tokens)

    def end_text(self) -> None:
        """What is fed from here on is another text."""
        self._last = _ROOT

    def longest_suffix(self) -> Match:
        """The longest suffix of the current text that occurred earlier."""
        state = self._link[self._last]
        # Not the one that ends the text; but one there was, counted or not.
        n_earlier = max(1, self._count[state] - 1)
        return Match(self, state, self._length[state], n_earlier)

    def follow(self, match: Match, n_tokens: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """The likely tokens after a match, and how likely each is given those before it."""
        tokens: list[int] = []
        confidence: list[float] = []
        state, n_seen = match.state, match.n_seen
        for length in range(match.length, match.length + n_tokens):
            token = self._likely[state]
            if token is None:
                break
            state = self._next[state][token]
            n_so = self._count[state]
            tokens.append(token)
            confidence.append(_confidence(n_so, n_seen, length))
            n_seen = n_so
        if state == self._last:
            _copy_itself(tokens, confidence, match.length, n_tokens)
        return tuple(tokens), tuple(confidence)

    def advance(self, state: int, length: int, token: int) -> tuple[int, int]:
        """State and length of the longest known suffix of another text, one token later."""
        while token not in self._next[state]:
            if state == _ROOT:
                return _ROOT, 0
            state = self._link[state]
            length = self._length[state]
        return self._next[state][token], length + 1

    def match_at(self, state: int, length: int) -> Match | None:
        """The match another text has reached; None where nothing ever followed."""
        if self._likely[state] is None:
            return None
        return Match(self, state, length, self._count[state])

    def _append(self, state: int, token: int) -> int:
        """The state of the text of `state` with one more token; the textbook construction."""
        longer = self._add_state(self._length[state] + 1, _ROOT, {}, 0, None)
        while token not in self._next[state]:
            self._next[state][token] = longer
            if state == _ROOT:
                return longer
            state = self._link[state]
        self._link[longer] = self._fitting(state, token)
        return longer

    def _fitting(self, state: int, token: int) -> int:
        """The state whose longest substring is that of `state` with `token`; split off if need be.

        Until now the split-off substrings occurred where the others did: counts are copied.
        """
        found = self._next[state][token]
        length = self._length[state] + 1
        if self._length[found] == length:
            return found
        following = self._next[found].copy()
        split = self._add_state(
            length, self._link[found], following, self._count[found], self._likely[found]
        )
        self._link[found] = split
        while self._next[state].get(token) == found:
            self._next[state][token] = split
            state = self._link[state]
        return split

    def _add_state(
        self, length: int, link: int, following: dict[int, int], count: int, likely: int | None
    ) -> int:
        self._length.append(length)
        self._link.append(link)
        self._next.append(following)
        self._count.append(count)
        self._likely.append(likely)
        return len(self._length) - 1

    def _count_occurrence(self, state: int, token: int) -> None:
        """`token` followed the text of `state`, and with it every suffix of that text."""
        counted = _ROOT
        for _ in range(_MAX_COUNTED):
            reached = self._next[state][token]
            if reached != counted:  # neighbouring suffixes may share the state they reach
                self._count[reached] += 1
                counted = reached
            likely = self._likely[state]
            if likely is None or self._count[reached] >= self._count[self._next[state][likely]]:
                self._likely[state] = token
            if state == _ROOT:
                return
            state = self._link[state]


def _copy_itself(tokens: list[int], confidence: list[float], match: int, n_tokens: int) -> None:
    """Go on past the end of the text, where the draft is what follows: periodic text, seen once."""
    period = len(tokens)
    for length in range(match + period, match + n_tokens):
        tokens.append(tokens[-period])
        confidence.append(_confidence(1, 1, length))


def _confidence(n_so: int, n_seen: int, length: int) -> float:
    """The share of earlier occurrences that went on so, with a doubt that fades as matches grow.

    Once of once after a match of m tokens gives m / (m + 3). Never above one: where not every
    occurrence was counted, more may seem to have gone on than there were.
    """
    return min(1.0, n_so / (n_seen + _DOUBT / length))
