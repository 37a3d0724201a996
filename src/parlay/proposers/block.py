"""Draft a whole block in one pass: a DFlash drafter fills in the masks after the last token.

Its cache holds the target's own hidden states of the text so far, not a reading of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from parlay.decoding.span import Span
from parlay.decoding.states import Fed, StateModel
from parlay.proposers.drafting import Drafting, DraftLimits
from parlay.proposers.follower import Follower
from parlay.proposers.proposer import Ask, Worth


class DFlashProposer(Follower):
    """A block drafter, several sequences in one pass."""

    def __init__(
        self,
        model: StateModel,
        limits: DraftLimits,
        *,
        block_size: int,
        mask: int,
        from_anchor: bool = False,
        name: str = "dflash",
    ) -> None:
        """`from_anchor`: the last token's own row gives the first one drafted (DSpark)."""
        super().__init__(model, limits, name)
        # The last token, and a mask for each drafted one, whether or not the first has one.
        self.block_size: int = block_size + int(from_anchor)
        self.longest = self.block_size - 1
        self._mask = mask
        self._first = 0 if from_anchor else 1  # the first row that is read

    def _extend_all(self, drafting: list[Drafting], worth: Worth | None) -> None:
        self._catch_up([d.ask for d in drafting])
        self._fill_in(drafting)

    def _catch_up(self, asks: Sequence[Ask]) -> None:
        """Take in the states of what was committed since the last draft."""
        slots = {ask.seq_id: self._slot(ask.seq_id) for ask in asks}
        self._take_in(
            [
                Fed(s, slot.n_read, slot.rows(len(slot.tokens)))
                for s, slot in slots.items()
                if slot.tokens
            ]
        )
        for slot in slots.values():
            slot.took(len(slot.tokens))

    def _take_in(self, fed: Sequence[Fed]) -> None:
        """States alone, as many in one pass as it holds."""
        waiting = [replace(item, tokens=()) for item in fed]
        while waiting:
            rows, room = [], self._limits.n_batch
            for item in waiting:
                if room:
                    rows.append(replace(item, states=item.states[:room]))
                    room -= len(rows[-1].states)
            self._model.read(rows)
            waiting = _rest(waiting, [len(item.states) for item in rows])

    def _fill_in(self, going: Sequence[Drafting]) -> None:
        """One pass over every sequence's last token and masks; the masks' rows are the draft."""
        n = self._n_drafted([d.ask for d in going])
        spans = [self._block(d.ask, n) for d in going]
        try:
            for d, rows in zip(going, self._model.decode(spans), strict=True):
                for row in rows[self._first :]:
                    if not d.add(row):
                        break
        finally:
            for span in spans:  # the block was a guess; what holds of it comes back as states
                self._model.truncate(span.seq_id, span.start)

    def _n_drafted(self, asks: Sequence[Ask]) -> int:
        """Equal for all, so that llama.cpp keeps them in one pass."""
        widest = max(ask.window for ask in asks)
        room = min(self._model.context_size - len(ask.tokens) for ask in asks)
        return min(widest, room, self.block_size - 1)

    def _block(self, ask: Ask, n_drafted: int, n_logits: int | None = None) -> Span:
        # Logits of every row: llama.cpp's graph for these drafters gives all or the wrong ones.
        tokens = (ask.tokens[-1], *(self._mask,) * (n_drafted - 1 + self._first))
        n = len(tokens) if n_logits is None else n_logits
        return Span(ask.seq_id, len(ask.tokens) - 1, tokens, n)


def _rest(fed: Sequence[Fed], n_read: Sequence[int]) -> list[Fed]:
    """What is left after the first rows of each item were read."""
    done = [*n_read, *(0,) * (len(fed) - len(n_read))]
    left = [
        replace(item, start=item.start + n, states=item.states[n:])
        for item, n in zip(fed, done, strict=True)
    ]
    return [item for item in left if len(item.states)]
