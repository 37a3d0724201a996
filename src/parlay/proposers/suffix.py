"""Suffix lookup: the longest end of the text that occurred before tells what to draft, and how far.

Knows no model; of other sequences, only the texts `finish` handed it, and those only when asked to.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from parlay.decoding.draft import NO_DRAFT, Draft
from parlay.errors import BadRequest
from parlay.proposers.occurrences import SEPARATOR, Occurrences
from parlay.proposers.proposer import Ask
from parlay.proposers.slot_texts import SlotTexts

# Runs that are looked up, the longest first; of those found, the places that share most are taken.
_SIZES = (2, 4, 8)
_MAX_TAIL = 64  # tokens of a sequence that are looked for in past texts
# Weight of doubt in a confidence, and its size on Qwen2 tokens of code, prose and JSON: 0.25, 0.37,
# 0.49, 0.56 of the tokens proved right that had followed a match of 1, 2, 3, 4 tokens once of once.
_DOUBT = 3.0


class SuffixProposer:
    """Drafts what most often followed the longest suffix that occurred earlier.

    A match of m tokens carries a draft of up to `factor` * m. A call costs O(new tokens + window),
    whatever the length of the context. Memory: some 50 bytes per token of every slot, kept for the
    next turn up to a bound, and as much per token of `remember_tokens`, which bounds the past texts
    shared by all sequences.
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
        sizes = (min_match, *(size for size in _SIZES if size > min_match))
        self._past = _Past(remember_tokens, sizes) if remember_tokens else None
        self._texts = SlotTexts(sizes)

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        """One draft per ask, in order."""
        return [self._draft(ask) for ask in asks]

    def begin(self, seq_id: int, tokens: Sequence[int], n_kept: int) -> None:
        """Keep what the slot's last text shares with this one."""
        self._texts.begin(seq_id, tokens, n_kept)

    def read(self, seq_id: int, tokens: Sequence[int]) -> None:
        """Index a prompt."""
        self._texts.of(seq_id, tokens)

    def forget(self, seq_id: int) -> None:
        """The slot starts over."""
        self._texts.forget(seq_id)

    def finish(self, seq_id: int, tokens: Sequence[int]) -> None:
        """The sequence ended: remember its text if asked to; the next turn may begin with it."""
        if self._past is not None:
            self._past.add(tokens)
        self._texts.end(seq_id)

    def shift(self, seq_id: int, keep: int, discard: int) -> None:
        """Every later position moved: index anew, once per `discard` tokens, so O(1) per token."""
        self.forget(seq_id)

    def close(self) -> None:
        """Give all memory back, past texts included."""
        self._texts.clear()
        self._past = None

    def _draft(self, ask: Ask) -> Draft:
        if ask.window == 0:
            return NO_DRAFT  # the index catches up when it is next needed
        match = self._longest(ask)
        if match is None:
            return NO_DRAFT
        n_tokens = min(ask.window, max(1, int(self._factor * match.length)))
        tokens, confidence = match.follow(n_tokens)
        return Draft(tokens, self.name, confidence)

    def _longest(self, ask: Ask) -> Match | None:
        """The longest suffix that occurred earlier, here or in the past; of equals, here."""
        own = self._texts.of(ask.seq_id, ask.tokens)
        length, ends = own.match()
        if self._past is not None:
            past = self._past.match(own.text[-_MAX_TAIL:])
            if past is not None and past.length > length:
                return past
        return Match(own.text, length, ends) if ends else None


class _Past:
    """Past texts up to a bound, in two generations: the older goes when the newer is full."""

    def __init__(self, max_tokens: int, sizes: Sequence[int]) -> None:
        self._half = max_tokens // 2
        self._sizes = sizes
        self._older, self._newer = Occurrences(sizes), Occurrences(sizes)

    def add(self, tokens: Sequence[int]) -> None:
        """Learn a text: its end, where the whole of it is too long."""
        kept = tokens[max(0, len(tokens) - self._half) :]
        if len(self._newer) + len(kept) > self._half:
            self._older, self._newer = self._newer, Occurrences(self._sizes)
        self._newer.feed([*kept, SEPARATOR])

    def match(self, tail: array[int]) -> Match | None:
        """The longest end of a text that a past one went on from."""
        found = [_past_match(texts, tail) for texts in (self._newer, self._older)]
        return max(filter(None, found), key=lambda match: match.length, default=None)


def _past_match(texts: Occurrences, tail: array[int]) -> Match | None:
    length, ends = texts.match_of(tail)
    goes_on = any(texts.text[end] != SEPARATOR for end in ends)
    return Match(texts.text, length, ends) if goes_on else None


@dataclass(frozen=True, slots=True)
class Match:
    """Where the end of a text occurred earlier."""

    text: array[int]
    length: int  # tokens that match
    ends: Sequence[int]  # of the places, the latest first

    def follow(self, n_tokens: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """The likely tokens after a match, and how likely each is given those before it."""
        tokens: list[int] = []
        confidence: list[float] = []
        ends = self.ends
        while len(ends) > 1 and len(tokens) < n_tokens:
            nexts = [self._after(end, tokens) for end in ends]
            known = [token for token in dict.fromkeys(nexts) if token != SEPARATOR]
            if not known:
                break
            likely = max(known, key=nexts.count)  # of equals the latest: it comes first
            agree = [end for end, token in zip(ends, nexts, strict=True) if token == likely]
            confidence.append(_confidence(len(agree), len(ends), self.length + len(tokens)))
            tokens.append(likely)
            ends = agree
        if len(ends) == 1:
            self._copy(ends[0], tokens, n_tokens)
            confidence += _alone(self.length + len(confidence), len(tokens) - len(confidence))
        return tuple(tokens), tuple(confidence)

    def _after(self, end: int, tokens: Sequence[int]) -> int:
        """The token after an earlier place and what is drafted; past the text comes the draft."""
        at, n = end + len(tokens), len(self.text)
        return self.text[at] if at < n else tokens[at - n]

    def _copy(self, end: int, tokens: list[int], n_tokens: int) -> None:
        """Go on from the only place there is; past the text, go on copying the draft itself."""
        period = len(self.text) - end
        found = self.text[end + len(tokens) : end + n_tokens].tolist()
        if SEPARATOR in found:
            tokens += found[: found.index(SEPARATOR)]
            return
        tokens += found
        while len(tokens) < n_tokens:
            tokens.append(tokens[-period])


def _confidence(n_so: int, n_seen: int, length: int) -> float:
    """The share of earlier occurrences that went on so, with a doubt that fades as matches grow.

    Once of once after a match of m tokens gives m / (m + 3).
    """
    return n_so / (n_seen + _DOUBT / length)


@cache
def _alone(length: int, n: int) -> tuple[float, ...]:
    """The confidences of n tokens where there is one earlier occurrence."""
    return tuple(_confidence(1, 1, longer) for longer in range(length, length + n))
