"""Draft from the text a client expects: follow it as a diff is read, and find the place again.

Knows tokens only. Nothing is believed: every token is verified, and how often a kind of guess holds
is for the controller to learn from its confidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parlay.decoding.draft import NO_DRAFT, Draft
from parlay.proposers.proposer import Ask, Proposer, Worth

PREDICTION = "prediction"
_LONGEST = 16  # tokens of a match that are compared: longer ones say no more
_MAX_EDITS = 64  # changes that are remembered, the latest
_LONGEST_EDIT = 16  # tokens of one side of a change that is worth remembering
_NEAR, _FAR = 64, 512  # tokens from the place that was left to the one found
_AT_START = 0.8  # the client says that the answer begins so
_SWAPPED = 0.35  # one token stands for one: a guess after a change, before anything matches
_REPEATED = 0.8  # a change that was made before is made again
_MIDST = 0.97  # and goes on as it did, once it has begun


class PredictionProposer(Proposer):
    """Drafts what comes next in the prediction.

    While the answer equals the prediction, its next tokens are the draft. After a token that
    differs, the place is found again: the nearest later place that the answer's end agrees with,
    else the one that a change of as many tokens leads to. A change made once is expected wherever
    the same tokens come again, as in a rename. A call costs O(new tokens + window), and one scan of
    the prediction (numpy) after a token that differs.
    """

    name = PREDICTION
    free = True

    def __init__(self) -> None:
        self._readers: dict[int, _Reader] = {}

    def draft(self, asks: Sequence[Ask], worth: Worth | None = None) -> list[Draft]:
        """Empty where no prediction came with the request."""
        return [self._draft(ask) for ask in asks]

    def open(self, seq_id: int, tokens: Sequence[int], n_kept: int, owner: str = "") -> None:
        self._readers.pop(seq_id, None)

    def finish(self, seq_id: int, tokens: Sequence[int]) -> None:
        self._readers.pop(seq_id, None)

    def cut(self, seq_id: int, keep: int, gone: int) -> None:
        """The answer's older tokens went: read on from what is left."""
        self._readers.pop(seq_id, None)

    def close(self) -> None:
        self._readers.clear()

    def _draft(self, ask: Ask) -> Draft:
        if not ask.expected or not ask.window:
            return NO_DRAFT
        reader = self._readers.get(ask.seq_id)
        if reader is None or reader.expected is not ask.expected:
            reader = self._readers[ask.seq_id] = _Reader(ask.expected)
        reader.read(ask.tokens[ask.n_prompt + reader.n_read :])
        tokens, confidence = reader.guess(ask.window)
        return Draft(tokens, self.name, confidence) if tokens else NO_DRAFT


def _needed(distance: int) -> int:
    """Tokens that must agree before a place is believed: more the further it is off."""
    if distance <= 0:
        return 4
    return 2 if distance <= _NEAR else 3 if distance <= _FAR else 4


@dataclass(frozen=True, slots=True)
class _Left:
    """Where the answer left the prediction."""

    place: int  # of the expected token that did not come
    at: int  # of the token that came instead, in the answer


class _Reader:
    """One answer's place in its prediction."""

    def __init__(self, expected: Sequence[int]) -> None:
        self.expected = expected
        self._ids: NDArray[np.int32] = np.array(expected, np.int32)
        self._answer: list[int] = []
        self._place = 0  # of the next token that is expected
        self._run = 0  # tokens that have agreed in a row; 0 at the start and after a change
        self._left: _Left | None = None
        self._coming: tuple[int, ...] = ()  # what is left of a change that is being made again
        self._behind = 0  # the place after it
        self._edits: dict[tuple[int, ...], tuple[int, ...]] = {}  # what stood there, what came
        self._edited: set[int] = set()  # the first tokens of what stood there

    # -- following ------------------------------------------------------------

    @property
    def n_read(self) -> int:
        """Tokens of the answer that have moved the place."""
        return len(self._answer)

    def read(self, more: Sequence[int]) -> None:
        """What is new of the answer moves the place."""
        for token in more:
            self._answer.append(token)
            if self._left is not None or not self._goes_on(token):
                self._search(token)

    def _goes_on(self, token: int) -> bool:
        """Whether it is the expected token, or the next one of a change that is made again."""
        if not self._coming and self._place < len(self.expected):
            if self.expected[self._place] == token:
                self._place += 1
                self._run += 1
                return True
            edit = self._edit_at(self._place)
            if edit is not None:
                stood, self._coming = edit
                self._behind = self._place + len(stood)
        if not self._coming or self._coming[0] != token:
            return False
        self._coming = self._coming[1:]
        if not self._coming:
            self._place = self._behind
        self._run += 1
        return True

    def _search(self, token: int) -> None:
        """A token that differs, or one after it: where may the answer be now?"""
        if self._left is None:
            self._left = _Left(self._place, len(self._answer) - 1)
            self._coming, self._run = (), 0
        found = self._nearest(token, self._left)
        if found is None:  # as many tokens were swapped as came since, for all that is known
            swapped = self._left.place + len(self._answer) - self._left.at
            self._place = min(swapped, len(self.expected))
            return
        self._place, length = found
        if length + self._is_rare(token) >= _needed(self._place - self._left.place):
            self._remember(self._left, length)
            self._left, self._run = None, length

    def _nearest(self, token: int, left: _Left) -> tuple[int, int] | None:
        """The place after the longest match with the answer's end, the nearest after the one that
        was left; before it only where none comes after it, and then by three tokens or more."""
        ends = np.flatnonzero(self._ids == token) + 1
        if not len(ends):
            return None
        later, earlier = ends[ends > left.place][:64], ends[ends <= left.place][-16:]
        since = len(self._answer) - left.at
        best: tuple[int, int] | None = None
        for end in later.tolist():
            length = min(self._agreed(end), since)  # what agreed before the change says nothing
            if best is None or length > best[1]:
                best = (end, length)
        if best is not None:
            return best
        lengths = [(end, self._agreed(end)) for end in earlier.tolist()]
        return max((f for f in lengths if f[1] > 2), key=lambda found: found[1], default=None)

    def _agreed(self, end: int) -> int:
        """Tokens before a place that the answer ends with."""
        most, n = min(end, len(self._answer), _LONGEST), 1
        while n < most and self.expected[end - 1 - n] == self._answer[-1 - n]:
            n += 1
        return n

    def _is_rare(self, token: int) -> bool:
        return int(np.count_nonzero(self._ids == token)) == 1

    # -- changes that come again ----------------------------------------------

    def _remember(self, left: _Left, length: int) -> None:
        """What stood between the place that was left and the one found, and what came instead."""
        stood = tuple(self.expected[left.place : self._place - length])
        came = tuple(self._answer[left.at : len(self._answer) - length])
        if 0 < len(stood) <= _LONGEST_EDIT and 0 < len(came) <= _LONGEST_EDIT:
            self._edits.pop(stood, None)
            self._edits[stood] = came
            self._edited.add(stood[0])
            if len(self._edits) > _MAX_EDITS:
                del self._edits[next(iter(self._edits))]

    def _edit_at(self, place: int) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """A change that was made to what stands here, the latest first."""
        if place >= len(self.expected) or self.expected[place] not in self._edited:
            return None
        for stood, came in reversed(self._edits.items()):
            if tuple(self.expected[place : place + len(stood)]) == stood:
                return stood, came
        return None

    # -- drafting -------------------------------------------------------------

    def guess(self, window: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """The next tokens, and how sure of each."""
        tokens = list(self._coming)
        confidence = [_MIDST] * len(tokens)
        place, run = self._behind if tokens else self._place, self._run
        while len(tokens) < window and place < len(self.expected):
            edit = self._edit_at(place) if self._edits and self._left is None else None
            if edit is None:
                tokens.append(self.expected[place])
                confidence.append(self._confidence(run))
                place += 1
            else:
                stood, came = edit
                tokens += came
                confidence += [_REPEATED, *(_MIDST,) * (len(came) - 1)]
                place += len(stood)
            run += 1
        return tuple(tokens[:window]), tuple(confidence[:window])

    def _confidence(self, run: int) -> float:
        """More the longer the answer has agreed."""
        if self._left is not None:
            return _SWAPPED if run == 0 else max(_SWAPPED, run / (run + 1.0))
        if not self._answer:
            return _AT_START
        return (run + 1.0) / (run + 1.5)
