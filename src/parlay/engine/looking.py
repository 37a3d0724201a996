"""Looking: drafts that are compared with the text as it comes, not verified.

Knows proposers and texts; whether to look is the controller's affair. A draft that was made before
a pass is compared once. A draft model with a thread of its own makes a few, one after the other,
while the target goes on without them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

from parlay.control.looks import IN_A_ROW
from parlay.decoding.draft import Draft, Look
from parlay.decoding.span import common_prefix
from parlay.engine.sequence import Sequence
from parlay.proposers.proposer import Ask, Watching


@dataclass(slots=True)
class _Beside:
    """Who drafts on, and for what."""

    proposer: Watching
    ask: Ask


@dataclass(slots=True)
class _Looked:
    """What one text is compared with."""

    at: int  # tokens that the text had
    draft: Draft | None  # None: it is being made
    beside: _Beside | None = None
    over: bool = False
    found: list[Look] = field(default_factory=list)

    def see(self, seq: Sequence) -> None:
        """Compare; once the text has left the draft or come to its end, have another one made."""
        if self.draft is None and self.beside is not None:
            self.draft = self.beside.proposer.looked(seq.seq_id)
        if self.over or self.draft is None:
            return
        tokens, said = self.draft.tokens, seq.tokens[self.at : self.at + len(self.draft.tokens)]
        n_right = common_prefix(tokens, said)
        if n_right == len(said) < len(tokens):
            return
        if tokens:
            self.found.append(Look(self.draft.proposer, n_right, self.draft.confidence))
        self.over = self.beside is None or not tokens or len(self.found) == IN_A_ROW
        if self.beside is not None and not self.over:
            self.at, self.draft = len(seq.tokens), None
            self.beside.proposer.look(replace(self.beside.ask, position=seq.n_generated))


class Looking:
    """The texts that are looked at, by slot."""

    def __init__(self) -> None:
        self.texts: dict[int, _Looked] = {}  # nothing need be asked while there are none

    def keep(self, seq: Sequence, draft: Draft) -> None:
        """Compare a draft that is there."""
        self.texts[seq.seq_id] = _Looked(len(seq.tokens), draft)

    def begin(self, seq: Sequence, proposer: Watching, ask: Ask) -> None:
        """Let a drafter make some beside passes; `ask` has the text as it grows."""
        self.texts[seq.seq_id] = _Looked(len(seq.tokens), None, _Beside(proposer, ask))
        proposer.look(ask)

    def end(self, seq_id: int) -> None:
        """Its drafter has something else to do."""
        looked = self.texts.get(seq_id)
        if looked is not None and looked.beside is not None:
            looked.over = True

    def cut_short(self, seq_id: int) -> None:
        """Tokens went from the middle of the text: what came of it so far is all there is."""
        looked = self.texts.get(seq_id)
        if looked is not None:
            looked.over = True

    def forget(self, seq_id: int) -> None:
        self.texts.pop(seq_id, None)

    def under_way(self, sequences: Iterable[Sequence]) -> bool:
        """Whether a drafter is at work for one of these."""
        looked = [self.texts.get(seq.seq_id) for seq in sequences]
        return any(each is not None and each.draft is None and not each.over for each in looked)

    def go_on(self, sequences: Iterable[Sequence], proposers: Collection[object]) -> list[Sequence]:
        """A device computes; the texts that there is something to tell of now. Of `proposers` that
        are not there any more nothing is asked."""
        told: list[Sequence] = []
        for seq in sequences:
            each = self.texts.get(seq.seq_id)
            if each is not None and each.beside is not None and not each.over:
                if each.beside.proposer in proposers:
                    each.see(seq)
                else:
                    each.over = True
                told += [seq] if each.over else []
        return told

    def told(self, seq: Sequence) -> list[Look]:
        """What came of drafts beside passes."""
        return self.texts.pop(seq.seq_id).found

    def seen(self, seq: Sequence) -> list[Look] | None:
        """What came of it, once that is known; told once."""
        looked = self.texts.get(seq.seq_id)
        if looked is None:
            return None
        if looked.beside is None:
            looked.see(seq)
        return self.texts.pop(seq.seq_id).found if looked.over else None
