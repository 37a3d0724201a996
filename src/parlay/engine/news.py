"""News: what the proposers of an engine are told of its texts, from the first token to the last.

Knows no kinds of proposers; asks nobody for a draft.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq

from parlay.engine.asks import free_ask
from parlay.engine.faults import Faults
from parlay.engine.sequence import Sequence
from parlay.proposers.proposer import Proposer


class News:
    """Tells all proposers, which come and go. One that misses news drafts badly at worst: every
    token is verified."""

    def __init__(self, proposers: Mapping[str, Proposer], faults: Faults) -> None:
        self._proposers = proposers
        self._faults = faults

    def begin(self, seq: Sequence) -> None:
        """It has got its slot."""
        given = seq.seq_id, seq.tokens, seq.n_reused, seq.request.memory
        self._tell("begin", lambda proposer: proposer.open(*given))

    def read(self, seq: Sequence) -> None:
        """The target is reading its prompt."""
        self._tell("read", lambda proposer: proposer.meanwhile(free_ask(seq, 0), ()))

    def prepare(self, seq: Sequence, draft: Seq[int], window: int) -> None:
        """This draft is being verified; of up to `window` tokens may be the next one."""
        self._tell("prepare", lambda proposer: _prepare(proposer, seq, draft, window))

    def shift(self, seq_id: int, keep: int, discard: int) -> None:
        """So many tokens went, after so many that stay."""
        self._tell("shift", lambda proposer: proposer.cut(seq_id, keep, discard))

    def finish(self, seq: Sequence) -> None:
        self._tell("finish", lambda proposer: proposer.finish(seq.seq_id, seq.tokens))

    def _tell(self, what: str, tell: Callable[[Proposer], None]) -> None:
        for name, proposer in self._proposers.items():
            try:
                tell(proposer)
            except Exception as error:
                self._faults.tell(f"the proposer {name} failed to {what}", error)


def _prepare(proposer: Proposer, seq: Sequence, draft: Seq[int], window: int) -> None:
    allowed = seq.request.proposers is None or proposer.name in seq.request.proposers
    proposer.meanwhile(free_ask(seq, window if allowed else 0), draft)
