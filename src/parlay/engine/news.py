"""News: what the proposers of an engine are told of its texts, from the first token to the last.

Knows what kinds of proposers want to hear; asks nobody for a draft.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq

from parlay.control.controller import Choice
from parlay.engine.asks import free_ask, model_ask
from parlay.engine.faults import Faults
from parlay.engine.sequence import Sequence
from parlay.proposers.proposer import Proposer, expects, indexes, prepares, reads_along

# Before anybody has chosen: with confidences, since whoever sets the windows may want them.
_UNSET = Choice("", 0, keep_going=lambda _confidences: True)


class News:
    """Tells all proposers, which come and go. One that misses news drafts badly at worst: every
    token is verified."""

    def __init__(self, proposers: Mapping[str, Proposer], faults: Faults) -> None:
        self._proposers = proposers
        self._faults = faults

    def begin(self, seq: Sequence) -> None:
        """It has got its slot: those who index texts keep what it shares with the slot's last one,
        the others forget that."""
        self._tell("begin", lambda proposer: _begin(proposer, seq))

    def read(self, seq: Sequence) -> None:
        """The target is reading its prompt: drafters that can read it beside do, and those who
        index texts."""
        self._tell("read along", lambda proposer: _read_along(proposer, seq))
        self._tell("read", lambda proposer: _read(proposer, seq))

    def prepare(self, seq: Sequence, draft: Seq[int], window: int) -> None:
        """This draft is being verified; of up to `window` tokens may be the next one."""
        self._tell("prepare", lambda proposer: _prepare(proposer, seq, draft, window))

    def shift(self, seq_id: int, keep: int, discard: int) -> None:
        """So many tokens went, after so many that stay."""
        self._tell("shift", lambda proposer: proposer.shift(seq_id, keep, discard))

    def finish(self, seq: Sequence) -> None:
        self._tell("finish", lambda proposer: proposer.finish(seq.seq_id, seq.tokens))

    def _tell(self, what: str, tell: Callable[[Proposer], None]) -> None:
        for name, proposer in self._proposers.items():
            try:
                tell(proposer)
            except Exception as error:
                self._faults.tell(f"the proposer {name} failed to {what}", error)


def _begin(proposer: Proposer, seq: Sequence) -> None:
    if indexes(proposer):
        proposer.begin(seq.seq_id, seq.tokens, seq.n_reused, seq.request.memory)
    else:
        proposer.forget(seq.seq_id)


def _prepare(proposer: Proposer, seq: Sequence, draft: Seq[int], window: int) -> None:
    allowed = seq.request.proposers is None or proposer.name in seq.request.proposers
    if prepares(proposer):
        proposer.prepare(free_ask(seq, 0))
    if expects(proposer) and (draft or window):
        proposer.expect(free_ask(seq, window if allowed else 0), draft)


def _read(proposer: Proposer, seq: Sequence) -> None:
    if indexes(proposer):
        proposer.read(seq.seq_id, seq.tokens)


def _read_along(proposer: Proposer, seq: Sequence) -> None:
    request = seq.request
    allowed = request.proposers is None or proposer.name in request.proposers
    if allowed and not request.plain and reads_along(proposer):
        proposer.read_along(model_ask(seq, _UNSET))
