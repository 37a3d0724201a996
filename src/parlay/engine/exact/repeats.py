"""Whether a text repeats itself now: a function of its tokens alone, asked before every pass.

Knows tokens; nothing of drafts, caches or who else is there. An exact answer may change its class
by it, since whoever makes this text, with drafts or without, changes at the same places.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# So many tokens that occurred before are a repetition: what followed them does again 97 times in a
# hundred (the recordings that come with the package).
RUN = 8
# Repetitions that end at once are not worth a wider pass. A token that follows as it did earns one,
# one that does not costs two; a text in debt is not taken for repeating.
_CREDIT, _MOST, _ELSEWHERE = 4, 32, 2
_MASK = (1 << 64) - 1
_FACTORS: NDArray[np.uint64] = np.random.default_rng(8).integers(
    1 << 32, 1 << 63, RUN, dtype=np.uint64
) * np.uint64(2) + np.uint64(1)
_SINGLE: list[int] = _FACTORS.tolist()


class Repeats:
    """One text that grows; memory: some 100 bytes a token."""

    __slots__ = ("_credit", "_earlier", "_ends", "_taken", "_text")

    def __init__(self) -> None:
        self._start([])

    def _start(self, prompt: Sequence[int]) -> None:
        self._text = list(prompt)
        self._ends: dict[int, int] = _ends_of(self._text)  # of every run, the latest
        self._earlier: int | None = None  # where the run that ends the text ended before
        self._credit = _CREDIT
        # By token after the prompt, what was there before it: the run's key, its earlier end, ...
        self._taken: list[tuple[int, int | None, int | None, int]] = []

    def now(self, tokens: Sequence[int], n_prompt: int) -> bool:
        """Of a text that begins with a prompt of so many tokens."""
        if not self._text or len(self._text) > len(tokens):  # a new one, or part of it was dropped
            self._start(tokens[:n_prompt])
        for token in tokens[len(self._text) :]:
            self._push(token)
        return self._repeating

    def n_alike(self, tokens: Sequence[int], n_prompt: int, draft: Sequence[int]) -> int:
        """How many tokens of a draft leave this as it is, should they be the text."""
        before, n = self.now(tokens, n_prompt), 0
        for token in draft:
            self._push(token)
            if self._repeating != before:
                break
            n += 1
        while len(self._text) > len(tokens):
            self._pop()
        return n

    @property
    def _repeating(self) -> bool:
        return self._earlier is not None and self._credit >= 0

    def _push(self, token: int) -> None:
        text, expected = self._text, self._earlier
        credit = self._credit
        if expected is not None:
            follows = text[expected] == token
            self._credit = min(_MOST, credit + 1) if follows else credit - _ELSEWHERE
        text.append(token)
        key = _key(text) if len(text) >= RUN else 0
        before = self._ends.get(key)
        self._taken.append((key, before, expected, credit))
        self._earlier = before
        if len(text) >= RUN:
            self._ends[key] = len(text)

    def _pop(self) -> None:
        self._text.pop()
        key, before, self._earlier, self._credit = self._taken.pop()
        if before is None:
            self._ends.pop(key, None)
        else:
            self._ends[key] = before


def _key(text: Sequence[int]) -> int:
    """Of the last run: equal for equal runs, and always the same."""
    return sum(t * f for t, f in zip(text[-RUN:], _SINGLE, strict=True)) & _MASK


def _ends_of(text: Sequence[int]) -> dict[int, int]:
    """The same for every run of a text at once."""
    if len(text) < RUN:
        return {}
    runs = np.lib.stride_tricks.sliding_window_view(np.array(text, np.uint64), RUN)
    keys = (runs * _FACTORS).sum(axis=1, dtype=np.uint64)
    return dict(zip(keys.tolist(), range(RUN, len(text) + 1), strict=True))
