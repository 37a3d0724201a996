"""Draft what a grammar forces: marks, names and other parts the model has no choice about.

Knows a sequence's constraint and the bytes of tokens; the grammar's own state says what must come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from parlay.decoding.draft import NO_DRAFT, Draft
from parlay.decoding.spacing import Spacing
from parlay.proposers.proposer import Ask, Proposer, Worth

SKELETON = "skeleton"
_LAST = 0.8  # may be written as one with what follows it
_MOST_OWNERS = 256
_MOST_FINDS = 16  # owners, the latest, of whose answers skeletons are kept too


class SkeletonProposer(Proposer):
    """Drafts up to the next place where the model has a choice."""

    name = SKELETON
    free = True

    def __init__(self, piece: Callable[[int], bytes]) -> None:
        self._piece = piece
        self._spacings: dict[int, tuple[Spacing, int]] = {}  # and the tokens it has read
        self._owners: dict[int, str] = {}
        self._last: dict[str, Spacing] = {}  # of each owner's last answer, the latest at the end

    def draft(self, asks: Sequence[Ask], worth: Worth | None = None) -> list[Draft]:
        """Empty where no grammar holds."""
        return [self._draft(ask) for ask in asks]

    def at_mark(self, ask: Ask) -> bool:
        """Whether the text is outside of values' strings, where a grammar may force something."""
        return not self._read(ask).in_text

    def meanwhile(self, ask: Ask, draft: Sequence[int]) -> None:
        """Look behind the string or number that the text is in."""
        if ask.constraint is not None:
            spacing = self._read(ask)
            if spacing.in_string or spacing.in_number:
                ask.constraint.prepare(spacing)

    def open(self, seq_id: int, tokens: Sequence[int], n_kept: int, owner: str = "") -> None:
        self._forget(seq_id)

    def _forget(self, seq_id: int) -> None:
        self._spacings.pop(seq_id, None)
        self._owners.pop(seq_id, None)

    def finish(self, seq_id: int, tokens: Sequence[int]) -> None:
        """The next answer of the same owner will be spaced like this one."""
        spacing, _ = self._spacings.get(seq_id, (None, 0))
        if spacing is not None and spacing.has_habits:
            owner = self._owners[seq_id]
            self._last.pop(owner, None)
            self._last[owner] = spacing.kept()
            if len(self._last) > _MOST_OWNERS:
                del self._last[next(iter(self._last))]
            for old in [*self._last.values()][:-_MOST_FINDS][-1:]:
                old.found.clear()
        self._forget(seq_id)

    def forget_owner(self, owner: str | None = None) -> None:
        """How one owner's answers were spaced, named conversations included; or everybody's."""
        for name in list(self._last):
            if owner is None or name == owner or name.startswith(f"{owner}/"):
                self._last.pop(name).found.clear()  # which an answer under way has, too

    def cut(self, seq_id: int, keep: int, gone: int) -> None:
        """So many tokens before the end of what was read went."""
        if seq_id in self._spacings:
            spacing, n_read = self._spacings[seq_id]
            self._spacings[seq_id] = (spacing, n_read - gone)

    def close(self) -> None:
        self._spacings.clear()
        self._owners.clear()
        self._last.clear()

    def _draft(self, ask: Ask) -> Draft:
        if ask.constraint is None or not ask.window:
            return NO_DRAFT
        n_said = len(ask.tokens) - ask.n_ahead
        forced = ask.constraint.forced(self._spacing(ask), ask.tokens[n_said:])
        if not forced.tokens:
            return NO_DRAFT
        *sure, last = forced.sure
        sure.append(last if last == 1.0 else min(last, _LAST))
        return Draft(forced.tokens[: ask.window], self.name, tuple(sure[: ask.window]))

    def _spacing(self, ask: Ask) -> Spacing:
        """With what another has drafted, if it comes."""
        spacing = self._read(ask)
        if ask.n_ahead:
            spacing = spacing.ahead()
            for token in ask.tokens[-ask.n_ahead :]:
                spacing.read(self._piece(token))
        return spacing

    def _read(self, ask: Ask) -> Spacing:
        known = self._spacings.get(ask.seq_id)
        spacing, n_read = known or (Spacing(self._last.get(ask.owner)), ask.n_prompt)
        n_said = len(ask.tokens) - ask.n_ahead
        for token in ask.tokens[n_read:n_said]:
            spacing.read(self._piece(token))
        self._spacings[ask.seq_id] = (spacing, n_said)
        self._owners[ask.seq_id] = ask.owner
        return spacing
