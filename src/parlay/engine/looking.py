"""Looking: drafts that are compared with the text as it comes, not verified.

Knows texts; whether to look is the controller's affair.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from parlay.decoding.draft import Draft, Look
from parlay.decoding.span import common_prefix
from parlay.engine.sequence import Sequence


@dataclass(slots=True)
class _Looked:
    """What one text is compared with."""

    at: int  # tokens that the text had
    draft: Draft
    over: bool = False
    found: list[Look] = field(default_factory=list)

    def see(self, seq: Sequence) -> None:
        """Compare, until the text has left the draft or come to its end."""
        tokens, said = self.draft.tokens, seq.tokens[self.at : self.at + len(self.draft.tokens)]
        n_right = common_prefix(tokens, said)
        if self.over or n_right == len(said) < len(tokens):
            return
        if tokens:
            self.found.append(Look(self.draft.proposer, n_right, self.draft.confidence))
        self.over = True


class Looking:
    """The texts that are looked at, by slot."""

    def __init__(self) -> None:
        self.texts: dict[int, _Looked] = {}  # nothing need be asked while there are none

    def keep(self, seq: Sequence, draft: Draft) -> None:
        """Compare a draft that is there."""
        self.texts[seq.seq_id] = _Looked(len(seq.tokens), draft)

    def cut_short(self, seq_id: int) -> None:
        """Tokens went from the middle of the text: what came of it so far is all there is."""
        looked = self.texts.get(seq_id)
        if looked is not None:
            looked.over = True

    def forget(self, seq_id: int) -> None:
        self.texts.pop(seq_id, None)

    def seen(self, seq: Sequence) -> list[Look] | None:
        """What came of it, once that is known; told once."""
        looked = self.texts.get(seq.seq_id)
        if looked is None:
            return None
        looked.see(seq)
        return self.texts.pop(seq.seq_id).found if looked.over else None
