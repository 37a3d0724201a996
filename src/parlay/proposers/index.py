"""Where the end of a text occurred before, and what is likely to follow it now: an index that reads
millions of tokens a second.

Knows tokens and positions; knows nothing of drafts, slots or whose texts they are.

Every run of `size` tokens has a bucket by its hash. A bucket knows where such a run ended last, and
every end knows the one before it in its bucket: a stack, so that what was read last can be taken
back. Runs that share a bucket by chance are told apart by looking at the text. Long stretches are
read by numpy in one go, single tokens by plain arithmetic on the same arrays.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from parlay.decoding.span import common_prefix

SEPARATOR = -1  # stands between texts: no token, so no match crosses it
_MAX_SIZE = 16
# One odd factor for each place of a run, the last token first. Sums of so many products of a token
# and a factor stay far below 2 ** 63.
_FACTORS: list[int] = (
    np.random.default_rng(20).integers(1 << 20, 1 << 28, _MAX_SIZE) * 2 + 1
).tolist()
_SINGLY = 24  # so many tokens are read one by one in the time numpy needs to begin
_MAX_SEEN = 16  # earlier places looked at, the latest first: the time of a look is bounded
MAX_MATCH = 64  # tokens compared: a longer match says no more
_MORE = 2048  # tokens: as many as most answers have
# Weight of doubt in a confidence, and its size on Qwen2 tokens of code, prose and JSON: 0.25, 0.37,
# 0.49, 0.56 of the tokens proved right that had followed a match of 1, 2, 3, 4 tokens once of once.
_DOUBT = 3.0


class Index:
    """One text (or several, apart), and where runs of the given sizes ended in it.

    Memory: 4 bytes per token, and 12 to 20 more per token and size it has room for.
    """

    __slots__ = ("_room", "_runs", "_upwards", "text")

    def __init__(self, sizes: Sequence[int]) -> None:
        self.text = array("i")
        self._runs = tuple(_Runs(size) for size in sorted(sizes, reverse=True))
        self._upwards = self._runs[::-1]
        self._room = 0  # tokens there is room for

    def __len__(self) -> int:
        return len(self.text)

    def feed(self, tokens: Sequence[int]) -> None:
        """Append to the text."""
        n = len(self.text)
        if n + len(tokens) > self._room:
            # With room for what follows: to make more takes as long as to read all of it again.
            self._make_room((n + len(tokens)) * 5 // 4 + _MORE)
        self.text.extend(tokens)
        if len(tokens) <= _SINGLY:
            for end in range(n + 1, len(self.text) + 1):
                self._add(end)
        else:
            self._add_all(n)

    def cut(self, n: int) -> None:
        """Forget everything after the first n tokens."""
        if n >= len(self.text):
            return
        first = n + 1
        for runs, hashes in zip(self._runs, self._hashes(first), strict=True):
            runs.drop(first, hashes)
        del self.text[n:]

    def match(self) -> tuple[int, list[int]]:
        """Length of the longest end of the text that occurred before, and where, latest first."""
        end, shortest = len(self.text), self._runs[-1]
        if shortest.size >= end or not shortest.earlier[end]:  # else no longer one was, either
            return 0, []
        tail = self.text[max(0, end - MAX_MATCH) :]
        for runs in self._runs:
            if runs.size < end and runs.earlier[end]:
                found = self._search(runs, runs.earlier[end], tail)
                if found[1]:
                    return found
        return 0, []

    def match_of(self, tail: array[int]) -> tuple[int, list[int]]:
        """The same for the end of another text."""
        for runs in self._runs:
            if runs.size <= min(len(tail), len(self.text)):
                found = self._search(runs, runs.latest_of(_hash(tail, runs.size)), tail)
                if found[1]:
                    return found
        return 0, []

    def _search(self, runs: _Runs, end: int, tail: array[int]) -> tuple[int, list[int]]:
        """Of the latest places in a bucket, those that share most with `tail`."""
        text, earlier, length = self.text, runs.earlier, runs.size
        wanted, ends = tail[-length:], list[int]()
        for _ in range(_MAX_SEEN):
            if not end:
                break
            if end >= length and text[end - length : end] == wanted:
                longer = _extended(text, end, tail, length)
                if longer > length:
                    length, wanted, ends = longer, tail[-longer:], []
                ends.append(end)
            end = earlier[end]
        return length, ends

    def _add(self, end: int) -> None:
        total, at, last = 0, 0, self.text[max(0, end - _MAX_SIZE) : end]
        last.reverse()
        for runs in self._upwards:  # shorter runs are the beginnings of longer sums
            size = runs.size
            if end < size:
                runs.earlier[end] = 0
                continue
            for i in range(at, size):
                total += last[i] * _FACTORS[i]
            at = size
            bucket = total & runs.mask
            runs.earlier[end] = runs.latest[bucket]
            runs.latest[bucket] = end

    def _add_all(self, n: int) -> None:
        for runs, hashes in zip(self._runs, self._hashes(n + 1), strict=True):
            runs.add_all(n + 1, hashes)

    def _hashes(self, first: int) -> list[NDArray[np.int64]]:
        """Per size, the hashes of the runs that end at `first` or later; those too short have none.

        The arrays are shorter than the text is from `first` on where no run of the size fits.
        """
        start = max(0, first - self._runs[0].size)
        tokens = np.array(self.text[start:], np.int64)
        found: list[NDArray[np.int64]] = []
        total, at = np.zeros(len(tokens) + 1, np.int64), 0
        for runs in reversed(self._runs):
            while at < min(runs.size, len(tokens)):
                total[at + 1 :] += tokens[: len(tokens) - at] * _FACTORS[at]
                at += 1
            found.append(total[max(first, start + runs.size) - start :].copy())
        return found[::-1]

    def _make_room(self, n: int) -> None:
        """More buckets: what was read is read again."""
        for runs in self._runs:
            runs.clear(n)
        self._room = n
        if len(self.text):
            self._add_all(0)


@dataclass(frozen=True, slots=True)
class Match:
    """Where the end of a text occurred earlier."""

    text: array[int]
    length: int  # tokens that match
    ends: Sequence[int]  # of the places, the latest first

    def follow(self, n_tokens: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """The likely tokens after a match, and how likely each is given those before it: what most
        of the places went on with that did so until then."""
        tokens: list[int] = []
        confidence: list[float] = []
        ends = self.ends
        while len(ends) > 1 and len(tokens) < n_tokens:
            n, length = len(ends), self.length + len(tokens)
            alike = self._alike(ends, tokens, n_tokens - len(tokens))
            if alike:
                confidence += [_confidence(n, n, length + i) for i in range(len(alike))]
                tokens += alike
                continue
            nexts = [self._after(end, tokens) for end in ends]
            known = [token for token in dict.fromkeys(nexts) if token != SEPARATOR]
            if not known:
                break
            likely = max(known, key=nexts.count)  # of equals the latest: it comes first
            ends = [end for end, token in zip(ends, nexts, strict=True) if token == likely]
            confidence.append(_confidence(len(ends), n, length))
            tokens.append(likely)
        if len(ends) == 1:
            self._copy(ends[0], tokens, n_tokens)
            confidence += _alone(self.length + len(confidence), len(tokens) - len(confidence))
        return tuple(tokens), tuple(confidence)

    def _alike(self, ends: Sequence[int], tokens: Sequence[int], most: int) -> list[int]:
        """What all these places went on with after what is drafted: there is nothing to choose."""
        text, n, latest = self.text, len(tokens), ends[0] + len(tokens)
        if latest + most > len(text):  # past the text comes the draft
            text = text + array("i", tokens)
        first = text[latest : latest + most]
        for end in ends[1:]:
            other = text[end + n : end + n + len(first)]
            if other != first:
                first = first[: common_prefix(first, other)]
        if SEPARATOR in first:
            first = first[: first.index(SEPARATOR)]
        return first.tolist()

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


class _Runs:
    """All runs of one size: by bucket the latest end, by end the one before it."""

    __slots__ = ("earlier", "latest", "mask", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.clear(0)

    def clear(self, n: int) -> None:
        """Start over, with room for n tokens."""
        n_buckets = 1 << (2 * n).bit_length()
        self.mask = n_buckets - 1
        # 0: none, since no run ends before the first token.
        self.latest, self.earlier = array("i", bytes(4 * n_buckets)), array("i", bytes(4 * n + 4))

    def latest_of(self, total: int) -> int:
        return self.latest[total & self.mask]

    def add_all(self, first: int, hashes: NDArray[np.int64]) -> None:
        """Many at once: sorted by bucket and end, each follows the one before it in its bucket."""
        if not len(hashes):
            return
        first = max(first, self.size)
        latest, earlier = (
            np.frombuffer(self.latest, np.int32),
            np.frombuffer(self.earlier, np.int32),
        )
        keys = (hashes & self.mask) << 32
        keys += np.arange(first, first + len(hashes))
        keys.sort()
        buckets, ends = keys >> 32, (keys & 0xFFFFFFFF).astype(np.int32)
        begins = np.empty(len(keys), bool)
        begins[0] = True
        np.not_equal(buckets[1:], buckets[:-1], out=begins[1:])
        before = np.empty_like(ends)
        before[1:] = ends[:-1]
        before[begins] = latest[buckets[begins]]
        earlier[ends] = before
        closes = np.append(begins[1:], True)
        latest[buckets[closes]] = ends[closes]

    def drop(self, first: int, hashes: NDArray[np.int64]) -> None:
        """Take back the ends from `first` on, the last one first."""
        first = max(first, self.size)
        latest, earlier = (
            np.frombuffer(self.latest, np.int32),
            np.frombuffer(self.earlier, np.int32),
        )
        buckets = (hashes & self.mask)[::-1]
        # Of several values for one bucket the last one stays: that of the earliest end.
        latest[buckets] = earlier[first : first + len(hashes)][::-1]


def _hash(tail: array[int], size: int) -> int:
    return sum(
        token * factor for token, factor in zip(reversed(tail[-size:]), _FACTORS, strict=False)
    )


def _extended(text: array[int], end: int, tail: array[int], length: int) -> int:
    """How far the text that ends at `end` agrees with `tail`, which it does for `length`."""
    most, last = min(end, len(tail)), len(tail) - 1
    if text[end - most : end] == tail[len(tail) - most :]:
        return most
    while length < most and text[end - 1 - length] == tail[last - length]:
        length += 1
    return length
