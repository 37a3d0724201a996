"""Draft token by token from the target's hidden states: EAGLE-3 and NextN heads, chains of NextN
layers, and Gemma 4's assistants.

Knows nothing of how the target is followed. While a drafter drafts, its own state stands for the
target's, which is not known yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from parlay.decoding.states import BorrowingModel, ChainModel, Fed, StateModel, States
from parlay.proposers.drafting import Drafting, DraftLimits, extended
from parlay.proposers.follower import Follower
from parlay.proposers.proposer import Ask, Worth


class HeadProposer(Follower):
    """A small head whose cache holds pairs: a state, and the token that came after it. One row per
    sequence and pass once it drafts."""

    _n_kept = 0  # pairs that begin a draft and are read again afterwards

    def __init__(
        self,
        model: StateModel,
        limits: DraftLimits,
        *,
        lead: int,
        name: str = "head",
    ) -> None:
        """`lead`: a pair lies at its state's position (0, EAGLE-3) or at its token's (1, NextN)."""
        super().__init__(model, limits, name)
        self._lead = lead

    def _extend_all(self, drafting: list[Drafting], worth: Worth | None) -> None:
        try:
            fed = self._catch_up([d.ask for d in drafting])
            going = drafting
            while going:
                read = self._model.read(fed)
                going, fed = self._extend(going, read, worth)
        finally:
            self._take_back(drafting)

    def _take_back(self, drafting: Sequence[Drafting]) -> None:
        """What it drafted is a guess; what holds comes back as states."""
        for d in drafting:
            n_read = self._slot(d.ask.seq_id).n_read
            self._model.truncate(d.ask.seq_id, self._position(n_read))

    def _is_ready(self, ask: Ask) -> bool:
        # The newest state must still be there: its pair gives the first token.
        return super()._is_ready(ask) and bool(self._slot(ask.seq_id).tokens)

    def _catch_up(self, asks: Sequence[Ask]) -> list[Fed]:
        """Read every pair but each sequence's last, which is returned: its logits begin a draft."""
        last = []
        for ask in asks:
            slot = self._slot(ask.seq_id)
            tokens = [*slot.tokens[1:], ask.tokens[-1]]
            pairs = Fed(ask.seq_id, slot.n_read, slot.rows(len(tokens)), tokens)
            last.append(replace(self._read_all_but_last(pairs), n_logits=1))
            slot.took(len(tokens) - self._n_kept)
        return last

    def _read_all_but_last(self, pairs: Fed) -> Fed:
        fed = self._as_fed(pairs)
        n = len(fed.tokens) - 1
        self._read(replace(fed, states=fed.states[:n], tokens=fed.tokens[:n]))
        return replace(fed, start=fed.start + n, states=fed.states[n:], tokens=fed.tokens[n:])

    def _extend(
        self,
        going: Sequence[Drafting],
        read: Sequence[tuple[NDArray[np.float32], States]],
        worth: Worth | None,
    ) -> tuple[list[Drafting], list[Fed]]:
        """Add a token to every draft; those that go on, and what they are fed next."""
        states = {d.ask.seq_id: own for d, (_, own) in zip(going, read, strict=True)}
        on: list[Drafting] = []
        fed: list[Fed] = []
        for d in extended(going, [rows[0] for rows, _ in read], worth):
            at = self._position(len(d.ask.tokens) - 1) + len(d.tokens) - 1
            if at + 1 < self._model.context_size:
                on.append(d)
                fed.append(Fed(d.ask.seq_id, at, states[d.ask.seq_id], (d.tokens[-1],), 1))
        return on, fed

    def _position(self, n: int) -> int:
        return n + self._lead if n else 0

    # -- pairs ----------------------------------------------------------------

    def _take_in(self, fed: Sequence[Fed]) -> None:
        for pairs in fed:
            self._read(self._as_fed(pairs))

    def _as_fed(self, pairs: Fed) -> Fed:
        """As the drafter wants its rows; a NextN head also reads the first token, after nothing."""
        states = self._model.encode(pairs.states)
        if not self._lead or pairs.start:
            return replace(pairs, start=pairs.start + self._lead, states=states)
        nothing = np.zeros((1, states.shape[1]), np.float32)
        first = self._slot(pairs.seq_id).tokens[0]
        return replace(
            pairs, states=np.concatenate([nothing, states]), tokens=[first, *pairs.tokens]
        )

    def _read(self, fed: Fed) -> None:
        """Without logits, as many rows in a pass as it holds."""
        for at in range(0, len(fed.tokens), self._limits.n_batch):
            end = at + self._limits.n_batch
            part = replace(
                fed, start=fed.start + at, states=fed.states[at:end], tokens=fed.tokens[at:end]
            )
            self._read_rows(part)

    def _read_rows(self, fed: Fed) -> None:
        """No more than a pass holds."""
        self._model.read([fed])


class ChainProposer(HeadProposer):
    """Several NextN layers in turn: the first token by the first of them, and so on, so that a
    draft has no more tokens than there are layers. Each has keys and values of its own in the same
    places: all read every pair, and what was drafted before is read again by the next one."""

    _model: ChainModel
    _n_kept = 1  # a short draft went through the first layers only

    def __init__(
        self,
        model: ChainModel,
        limits: DraftLimits,
        *,
        name: str = "chain",
    ) -> None:
        super().__init__(model, limits, lead=1, name=name)
        self.longest = model.n_links

    def _extend_all(self, drafting: list[Drafting], worth: Worth | None) -> None:
        try:
            going = list(drafting)
            fed = self._catch_up([d.ask for d in going])
            for link in range(self._model.n_links):
                if going:
                    self._use(link, fed)
                    read = self._model.read(fed)
                    going, fed = self._lengthen(going, fed, read, worth)
        finally:
            self._model.use(0)
            self._take_back(drafting)

    def _lengthen(
        self,
        going: Sequence[Drafting],
        fed: Sequence[Fed],
        read: Sequence[tuple[NDArray[np.float32], States]],
        worth: Worth | None,
    ) -> tuple[list[Drafting], list[Fed]]:
        """Add a token to every draft; those that go on, and what the next layer is fed."""
        before = {d.ask.seq_id: (f, own) for d, f, (_, own) in zip(going, fed, read, strict=True)}
        on: list[Drafting] = []
        longer: list[Fed] = []
        for d in extended(going, [rows[-1] for rows, _ in read], worth):
            item, own = before[d.ask.seq_id]
            if item.start + len(item.tokens) + 1 < self._model.context_size:
                on.append(d)
                states = np.concatenate([item.states, own[-1:]])
                tokens = (*item.tokens, d.tokens[-1])
                # Logits of every row: some of llama.cpp's graphs give all states or the wrong ones.
                longer.append(replace(item, states=states, tokens=tokens, n_logits=len(tokens)))
        return on, longer

    def _read_rows(self, fed: Fed) -> None:
        for link in range(self._model.n_links):
            self._use(link, [fed])
            self._model.read([fed])
        self._model.use(0)

    def _use(self, link: int, fed: Sequence[Fed]) -> None:
        """Let a layer read what the one before it has read."""
        self._model.use(link)
        for item in fed if link else ():
            self._model.truncate(item.seq_id, item.start)


class AssistantProposer(Follower):
    """Reads the target's own keys and values, and keeps nothing: the newest state is all it needs,
    always at the same position. One row per sequence and pass."""

    _model: BorrowingModel

    def _extend_all(self, drafting: list[Drafting], worth: Worth | None) -> None:
        going = drafting
        states = [self._newest(d.ask) for d in going]
        while going:
            fed = [self._fed(d, own) for d, own in zip(going, states, strict=True)]
            read = self._model.read(fed)
            own = {d.ask.seq_id: states for d, (_, states) in zip(going, read, strict=True)}
            going = extended(going, [rows[0] for rows, _ in read], worth)
            states = [own[d.ask.seq_id] for d in going]

    def _fed(self, drafting: Drafting, state: States) -> Fed:
        """The last token and the state before it, where the target's text ends: a draft is as if
        it were all read there."""
        ask = drafting.ask
        token = drafting.tokens[-1] if drafting.tokens else ask.tokens[-1]
        return Fed(ask.seq_id, self._model.length(ask.seq_id), state, (token,), 1)

    def _newest(self, ask: Ask) -> States:
        slot = self._slot(ask.seq_id)
        n = len(slot.tokens)
        state = slot.rows(n)[n - 1 :]
        slot.took(n)
        return state

    def _is_ready(self, ask: Ask) -> bool:
        return super()._is_ready(ask) and bool(self._slot(ask.seq_id).tokens)

    def _take_in(self, fed: Sequence[Fed]) -> None:
        """Nothing is kept of earlier states."""
