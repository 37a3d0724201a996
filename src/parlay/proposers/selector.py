"""Draft a block whose tokens depend on each other: a DFlash2 drafter with a selector.

Each row names a few candidates, and scores each of them after each candidate of the row before.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from parlay.decoding.sampling import Row
from parlay.decoding.states import LatticeModel, States
from parlay.proposers.dflash import DFlashProposer
from parlay.proposers.drafting import Drafting, DraftLimits


class SelectorProposer(DFlashProposer):
    """A block drafter that reads candidates and scores instead of logits."""

    def __init__(
        self,
        model: LatticeModel,
        limits: DraftLimits,
        *,
        block_size: int,
        mask: int,
        n_candidates: int,
        name: str = "selector",
    ) -> None:
        super().__init__(model, limits, block_size=block_size, mask=mask, name=name)
        self._lattices = model
        self._n_candidates = n_candidates

    def _fill_in(self, going: Sequence[Drafting]) -> None:
        n = self._n_drafted([d.ask for d in going])
        spans = [self._block(d.ask, n, n_logits=0) for d in going]
        try:
            for d, rows in zip(going, self._lattices.lattice(spans), strict=True):
                self._walk(d, rows[1:])
        finally:
            for span in spans:  # the block was a guess; what holds of it comes back as states
                self._model.truncate(span.seq_id, span.start)

    def _walk(self, d: Drafting, rows: States) -> None:
        """From candidate to candidate; the first ones follow the last committed token."""
        before = 0
        for row in rows:
            tokens = row[: self._n_candidates].astype(np.int64)
            if not d.add(self._logits(row, tokens, before)):
                return
            before = int(np.flatnonzero(tokens == d.tokens[-1])[0])

    def _logits(
        self, row: Row, tokens: np.ndarray[tuple[int], np.dtype[np.int64]], before: int
    ) -> Row:
        """The scores after the candidate before, as a row over the vocabulary."""
        start = self._n_candidates * (1 + before)
        logits = np.full(self._limits.n_vocab, -np.inf, np.float32)
        logits[tokens] = row[start : start + self._n_candidates]
        return logits
