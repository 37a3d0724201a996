"""The indexed text of every slot: kept when an answer ends, for the next turn begins with it.

Knows slots by their number and how much of a text the prompt cache kept. How a draft is found is
its proposer's affair; when there is time to look for the next one is known here.
"""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parlay.decoding.draft import NO_DRAFT, Draft
from parlay.decoding.span import common_prefix
from parlay.proposers.occurrences import Occurrences
from parlay.proposers.proposer import Ask, Proposer, Worth

# Tokens of ended sequences that all slots together may keep: some 50 MB.
MAX_KEPT = 1 << 20


class SlotTexts:
    """One index per slot; those of ended sequences go, the oldest first, when they are too many."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = tuple(sizes)
        self._texts: dict[int, Occurrences] = {}
        self._ended: dict[int, int] = {}  # slots without a sequence, and their tokens; oldest first
        self._sure: dict[int, int] = {}  # slots that expect a draft to hold, and the text before it

    def begin(self, seq_id: int, tokens: Sequence[int], n_kept: int) -> None:
        """A sequence begins: keep what it shares with the last one, up to what the cache kept."""
        self._ended.pop(seq_id, None)
        self._sure.pop(seq_id, None)  # what was expected is compared with the rest
        text = self._texts.get(seq_id)
        n_shared = 0 if text is None else _shared(text.text, tokens, n_kept)
        # To take back takes as long as to read: where little stays, that little is read again.
        if text is None or 2 * n_shared < len(text):
            self._texts[seq_id] = Occurrences(self._sizes)
        else:
            text.cut(n_shared)

    def of(self, seq_id: int, tokens: Sequence[int]) -> Occurrences:
        """The index of a sequence, brought up to its last token."""
        text = self._texts.get(seq_id)
        if text is None:
            text = self._texts[seq_id] = Occurrences(self._sizes)
        n_sure = self._sure.pop(seq_id, None)
        if n_sure is not None:
            text.cut(n_sure + common_prefix(text.text[n_sure:], tokens[n_sure:]))
        if len(text) < len(tokens):
            text.feed(tokens[len(text) :])
        return text

    def expect(self, seq_id: int, tokens: Sequence[int], draft: Sequence[int]) -> Occurrences:
        """Index a text and a draft of it; what does not hold is taken back when it is next used."""
        text = self.of(seq_id, tokens)
        if draft:
            self._sure[seq_id] = len(text)
            text.feed(draft)
        return text

    def end(self, seq_id: int) -> None:
        """The sequence ended; its text stays for the next turn while there is room."""
        if seq_id in self._texts:
            self._ended.pop(seq_id, None)
            self._ended[seq_id] = len(self._texts[seq_id])
        while sum(self._ended.values()) > MAX_KEPT:
            self.forget(next(iter(self._ended)))

    def forget(self, seq_id: int) -> None:
        """Give a slot's memory back."""
        self._ended.pop(seq_id, None)
        self._sure.pop(seq_id, None)
        self._texts.pop(seq_id, None)

    def clear(self) -> None:
        """Give all memory back."""
        self._texts.clear()
        self._ended.clear()
        self._sure.clear()


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


class IndexedText(Proposer):
    """What proposers that look into a sequence's own text do as it goes on.

    While a device verifies a draft they look what would follow if it held: to look for the next
    draft takes a round's time only where the text went another way.
    """

    free = True

    def __init__(self, sizes: Sequence[int]) -> None:
        self._texts = SlotTexts(sizes)
        self._foreseen: dict[int, _Foreseen] = {}  # by slot

    def draft(self, asks: Sequence[Ask], worth: Worth | None = None) -> list[Draft]:
        return [self._draft(ask) for ask in asks]

    @abstractmethod
    def _look(self, own: Occurrences, ask: Ask, *, ahead: bool) -> Draft:
        """What follows an indexed text; `ahead`: the target's own token, and then the draft that
        would be found if it said that."""

    def _draft(self, ask: Ask) -> Draft:
        """What follows a text: as it was foreseen, or looked for now."""
        if ask.window == 0:
            return NO_DRAFT  # the index catches up when it is next needed
        foreseen = self._foreseen.pop(ask.seq_id, None)
        known = None if foreseen is None else foreseen.rest(ask)
        if known is not None:
            return known
        own = self._texts.of(ask.seq_id, ask.tokens)
        try:
            return self._look(own, ask, ahead=False)
        finally:
            own.cut(len(ask.tokens) - ask.n_ahead)  # what another drafted is not the text yet

    def meanwhile(self, ask: Ask, draft: Sequence[int]) -> None:
        """Index a prompt, or a draft while it is verified, and look what would follow it."""
        own = self._texts.expect(ask.seq_id, ask.tokens, draft)
        self._foreseen.pop(ask.seq_id, None)
        if ask.window:
            found = self._look(own, ask, ahead=True)
            self._foreseen[ask.seq_id] = _Foreseen(len(ask.tokens), tuple(draft), found)

    def open(self, seq_id: int, tokens: Sequence[int], n_kept: int, owner: str = "") -> None:
        """Keep what the slot's last text shares with this one."""
        self._foreseen.pop(seq_id, None)
        self._texts.begin(seq_id, tokens, n_kept)

    def finish(self, seq_id: int, tokens: Sequence[int]) -> None:
        """The sequence ended: the next turn may begin with its text."""
        self._foreseen.pop(seq_id, None)
        self._texts.end(seq_id)

    def cut(self, seq_id: int, keep: int, gone: int) -> None:
        """Every later position moved: index anew, once per `gone` tokens, so O(1) per token."""
        self._foreseen.pop(seq_id, None)
        self._texts.forget(seq_id)

    def close(self) -> None:
        """Give all memory back."""
        self._foreseen.clear()
        self._texts.clear()


def _shared(text: array[int], tokens: Sequence[int], most: int) -> int:
    """Tokens that both begin with, at most so many."""
    n = min(len(text), len(tokens), most)
    differs = np.array(text[:n]) != np.array(tokens[:n], np.int32)
    return int(differs.argmax()) if differs.any() else n
