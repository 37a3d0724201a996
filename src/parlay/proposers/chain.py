"""Several proposers in order of preference: for each sequence, the first that has a draft wins.

Does not know what the proposers are, nor which of them pays: that is the controller's to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from parlay.decoding.draft import NO_DRAFT, Draft
from parlay.proposers.proposer import Ask, Proposer


class ChainProposer:
    """Asks each proposer in turn; a draft keeps the name of the one that made it."""

    name = "chain"

    def __init__(self, proposers: Sequence[Proposer]) -> None:
        self._proposers = tuple(proposers)

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        """One draft per ask, in order; later proposers see only the asks still without one."""
        drafts = [NO_DRAFT] * len(asks)
        waiting = list(range(len(asks)))
        for proposer in self._proposers:
            if not waiting:
                break
            answers = proposer.propose([asks[i] for i in waiting])
            for i, draft in zip(waiting, answers, strict=True):
                drafts[i] = draft
            waiting = [i for i in waiting if not drafts[i].tokens]
        return drafts

    def forget(self, seq_id: int) -> None:
        """The slot starts over, for all of them."""
        for proposer in self._proposers:
            proposer.forget(seq_id)

    def finish(self, seq_id: int, tokens: Sequence[int]) -> None:
        """The sequence ended, for all of them."""
        for proposer in self._proposers:
            proposer.finish(seq_id, tokens)

    def shift(self, seq_id: int, keep: int, discard: int) -> None:
        """Tokens left the context, for all of them."""
        for proposer in self._proposers:
            proposer.shift(seq_id, keep, discard)

    def close(self) -> None:
        """Close all of them, also when closing one of them fails."""
        with ExitStack() as stack:
            for proposer in reversed(self._proposers):
                stack.callback(proposer.close)
