"""Draft token by token with a Gemma 4 assistant, which reads the target's own keys and values.

It keeps nothing itself, so that there is nothing to catch up with: the newest state is all it
needs. While it drafts, its own state stands for the target's, always at the same position.
"""

from __future__ import annotations

from collections.abc import Sequence

from parlay.decoding.states import BorrowingModel, Fed, States
from parlay.proposers.drafting import Drafting, extended
from parlay.proposers.follower import Follower
from parlay.proposers.proposer import Ask, Worth


class AssistantProposer(Follower):
    """One row per sequence and pass."""

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
