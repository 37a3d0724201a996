"""Draft with several NextN layers in turn: the first token by the first of them, and so on.

Each layer has keys and values of its own in the same places, so that all read every pair, one
after the other. A draft has no more tokens than there are layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from parlay.decoding.states import ChainModel, Fed, States
from parlay.proposers.drafting import Drafting, DraftLimits, extended
from parlay.proposers.head import HeadProposer
from parlay.proposers.proposer import Worth


class ChainProposer(HeadProposer):
    """A layer for each token. What was drafted before is read again by the next one."""

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
