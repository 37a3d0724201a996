"""Glances: whether texts that nobody searches begin to repeat themselves.

Knows tokens only. Where searching takes too much of a fast pass, rounds go without it; a draft that
is made while a device computes takes nobody's time, and to compare it with the text as it comes
takes next to none. That tells when to search again, and how much has been right until then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from parlay.decoding.draft import NO_DRAFT, Draft, Shown
from parlay.decoding.span import common_prefix

# Of many texts a quarter is asked about in a round, two at least: to ask about all sixteen takes a
# quarter of what a device computes. One that goes on as drafted is not asked about until its end.
_AT_ONCE, _SHARE = 2, 4
WINDOW = 16  # tokens of a draft that is followed
# Tokens in a row that must be right, one or two are right in any text; and of how many texts. Where
# to search takes a quarter of a pass, as for many, more of both: a bet wants most of them.
_ROW, _PART = 3, 1 / 2
_ROW_OF_MANY, _PART_OF_MANY = 4, 2 / 3


class GlancedText(Protocol):
    """A text that goes on."""

    @property
    def seq_id(self) -> int: ...

    @property
    def tokens(self) -> Sequence[int]: ...


T = TypeVar("T", bound=GlancedText)


@dataclass(slots=True)
class _Followed:
    """A draft that a text is compared with."""

    at: int  # tokens that the text had
    draft: Draft
    n_right: int = 0
    n_before: int = 0  # tokens of earlier drafts, in a row
    n_told: int = 0  # tokens that somebody has been told of, or saw

    @property
    def run(self) -> int:
        return self.n_before + self.n_right

    @property
    def is_over(self) -> bool:
        return self.n_right == len(self.draft.tokens)


def longest(drafts: Iterable[Draft]) -> Draft:
    """Which of several a text is compared with: of drafts of one length the surest."""
    return max(drafts, key=lambda d: (len(d.tokens), d.confidence[:1]), default=NO_DRAFT)


class Glances:
    """The drafts that are followed, and what was right of them, by slot."""

    def __init__(self) -> None:
        self._followed: dict[int, _Followed] = {}
        self._shown: dict[int, list[Shown]] = {}  # that nobody was told of yet
        self._asked: dict[int, int] = {}  # the round of the last draft
        self._n_rounds = 0
        self._paused = False

    def pause(self) -> None:
        """A round that was searched: it tells by itself what was right."""
        self._paused = True

    def forget(self, seq_id: int) -> None:
        """Another text has its slot."""
        self._followed.pop(seq_id, None)
        self._shown.pop(seq_id, None)

    def whose_turn(self, texts: Sequence[T]) -> list[T]:
        """Called once a round: those that are to be asked about now."""
        self._n_rounds += 1
        for text in texts:
            found = self._followed.get(text.seq_id)
            if found is not None and not self._goes_on(text, found):
                del self._followed[text.seq_id]
        self._paused = False
        free = [t for t in texts if (f := self._followed.get(t.seq_id)) is None or f.is_over]
        free.sort(key=lambda t: (t.seq_id not in self._followed, self._asked.get(t.seq_id, 0)))
        return free[: max(_AT_ONCE, len(texts) // _SHARE)]

    def _goes_on(self, text: GlancedText, found: _Followed) -> bool:
        """Whether a text still is as was drafted."""
        known, tokens = found.at + found.n_right, text.tokens
        if len(tokens) < known:  # another one
            self._shown.pop(text.seq_id, None)
            return False
        came = tokens[known:]
        found.n_right += common_prefix(found.draft.tokens[found.n_right :], came)
        if self._paused:
            found.n_told = found.run
        if found.at + found.n_right == len(tokens):
            return True
        self._tell(text.seq_id, found, wrong=not found.is_over)
        return False

    def _tell(self, seq_id: int, found: _Followed, *, wrong: bool) -> None:
        n_right, wrong = found.run - found.n_told, wrong and not self._paused
        first = max(0, found.n_right - n_right)  # those of earlier drafts are gone
        sure = found.draft.confidence[first : found.n_right + wrong]
        found.n_told = found.run
        if n_right or wrong:
            shown = Shown(found.draft.proposer, n_right, wrong, sure)
            self._shown.setdefault(seq_id, []).append(shown)

    def follow(self, seq_id: int, n_tokens: int, draft: Draft) -> None:
        """What was drafted for a text of so many tokens."""
        self._asked[seq_id] = self._n_rounds
        last = self._followed.pop(seq_id, None)
        if draft.tokens:
            run, told = (0, 0) if last is None else (last.run, last.n_told)
            self._followed[seq_id] = _Followed(n_tokens, draft, n_before=run, n_told=told)
        elif last is not None:
            self._tell(seq_id, last, wrong=False)

    def repeats(self, n_texts: int) -> bool:
        """Whether enough of so many texts have gone on as drafted for long."""
        few = n_texts <= _AT_ONCE
        row, part = (_ROW, _PART) if few else (_ROW_OF_MANY, _PART_OF_MANY)
        return sum([f.run >= row for f in self._followed.values()]) >= part * n_texts

    def shown(self, seq_id: int) -> Sequence[Shown]:
        """What a text has shown since this was last asked."""
        found = self._followed.get(seq_id)
        if found is not None:
            self._tell(seq_id, found, wrong=False)
        return self._shown.pop(seq_id, ())
