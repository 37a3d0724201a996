"""Draft with a small model: its own context, kept in step with each sequence by common prefix.

Knows nothing of the target. Nothing has to tell it what was accepted: it compares tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from parlay.decoding.draft import Draft
from parlay.decoding.span import LoadedPasses, Span, common_prefix, pad
from parlay.proposers.drafting import Drafting, DraftLimits, extended
from parlay.proposers.proposer import Ask, Proposer, Worth

# A steady model catches up in single-token passes as long as that beats one pass of a new shape.
_STEADY_CATCH_UP = 4

Rows = NDArray[np.float32]  # of one sequence in one pass


@dataclass(slots=True)
class _Cached:
    """What the drafter's cache holds for one slot."""

    tokens: list[int] = field(default_factory=list)
    n_checked: int = 0  # so many tokens are known to equal the sequence's


class DraftModel(Proposer):
    """A drafter with a cache of its own, one row per sequence and pass."""

    continues = True

    def __init__(self, model: LoadedPasses, limits: DraftLimits, name: str = "model") -> None:
        self.name = name
        self.passes = model
        self._model = model
        self._limits = limits
        self._cached: dict[int, _Cached] = {}

    def draft(self, asks: Sequence[Ask], worth: Worth | None = None) -> list[Draft]:
        drafting = [Drafting(ask, self._limits, rated=worth is not None) for ask in asks]
        going = [d for d in drafting if self._has_room(d.ask)]
        if len(going) > 1:  # llama.cpp batches neighbours only if their ids come in order
            going.sort(key=lambda d: d.ask.seq_id)
        try:
            rows = self._catch_up(going)
            while going := extended(going, [row[-1] for row in rows], worth):
                rows = self._decode({d.ask.seq_id: d.tokens[-1:] for d in going}, n_logits=1)
        except Exception:
            self._reset()  # what the cache holds now is unknown
            raise
        return [d.draft(self.name) for d in drafting]

    def open(self, seq_id: int, tokens: Sequence[int], n_kept: int, owner: str = "") -> None:
        # The cache may share a prefix with what comes next: keep it, trust none of it.
        self._slot(seq_id).n_checked = 0

    def n_unread(self, seq_id: int, tokens: Sequence[int]) -> int:
        slot = self._slot(seq_id)
        n_read = slot.n_checked or common_prefix(slot.tokens, tokens)
        return max(1, len(tokens) - n_read)

    def cut(self, seq_id: int, keep: int, gone: int) -> None:
        slot = self._slot(seq_id)
        # Move what the target moved; a cache that cannot, or ends before that, is cut.
        if slot.n_checked >= keep + gone and self._model.can_shift:
            self._model.shift(seq_id, keep, gone)
            del slot.tokens[keep : keep + gone]
            slot.n_checked -= gone
        else:
            self._keep(seq_id, min(slot.n_checked, keep))

    def close(self) -> None:
        self._model.close()

    # -- the cache ------------------------------------------------------------

    def _reset(self) -> None:
        for seq_id in self._cached:
            self._model.clear(seq_id)
        self._cached.clear()

    def _has_room(self, ask: Ask) -> bool:
        return ask.window > 0 and len(ask.tokens) + ask.window <= self._model.context_size

    def _slot(self, seq_id: int) -> _Cached:
        slot = self._cached.get(seq_id)
        if slot is None:
            slot = self._cached[seq_id] = _Cached()
        return slot

    def _keep(self, seq_id: int, length: int) -> None:
        """Cut the cache to so many tokens, or to the nearest state before that it can reach."""
        slot = self._slot(seq_id)
        kept = self._model.reusable(seq_id, length) if length < len(slot.tokens) else length
        if kept < len(slot.tokens):
            self._model.truncate(seq_id, kept)
            del slot.tokens[kept:]
        slot.n_checked = min(slot.n_checked, kept)

    def _missing(self, ask: Ask) -> list[int]:
        """Cut the cache to what it shares with the text; what it lacks of that, at least one."""
        slot, tokens = self._slot(ask.seq_id), ask.tokens
        n, end = slot.n_checked, min(len(slot.tokens), len(tokens) - 1)
        n = min(n, end)
        n += common_prefix(slot.tokens[n:end], tokens[n:end])
        self._keep(ask.seq_id, n)
        slot.n_checked = len(slot.tokens)
        return list(tokens[len(slot.tokens) :])

    def _catch_up(self, going: Sequence[Drafting]) -> list[Rows]:
        """Feed every sequence's missing tokens; return the rows of their last ones."""
        missing = {d.ask.seq_id: self._missing(d.ask) for d in going}
        width = self._common_width(missing)
        if width:
            return self._read_equally(missing, width)
        share = self._limits.n_batch // max(1, len(missing))
        largest = 1 if self._model.steady else share  # the longest span that may carry logits
        while any(len(rest) > largest for rest in missing.values()):
            fed = {
                s: rest[: self._bite(len(rest), share)] for s, rest in missing.items() if rest[1:]
            }
            # A pass without logits is another shape; a single token's must stay what it is.
            self._decode(fed, n_logits=int(all(len(tokens) == 1 for tokens in fed.values())))
            missing = {s: rest[len(fed.get(s, ())) :] for s, rest in missing.items()}
        rows = self._decode(missing, n_logits=1)
        for seq_id in missing:  # where a cache that cannot be cut comes back to, if the draft fails
            self._model.mark(seq_id)
        return rows

    def _common_width(self, missing: Mapping[int, Sequence[int]]) -> int:
        """Rows of each in one pass over several sequences that lack little; 0: there is none.

        After a round some lack one token, some two or three. Equal rows for all are one pass of a
        shape that comes again, where rest after rest would be several of others.
        """
        most = max(map(len, missing.values()), default=0)
        width = 1 << (most - 1).bit_length() if most else 0
        cached, size = self._cached, self._model.context_size
        fits = (
            self._model.steady
            and len(missing) > 1
            and 1 < most <= _STEADY_CATCH_UP
            and width * len(missing) <= self._limits.n_batch
            and self._model.free_rollback >= width
            and all(len(cached[s].tokens) + width <= size for s in missing)
        )
        return width if fits else 0

    def _read_equally(self, missing: Mapping[int, list[int]], width: int) -> list[Rows]:
        """What is lacking, with rows that nobody reads up to so many of each; those go again."""
        cached = self._cached
        spans = [
            Span(s, len(cached[s].tokens), pad(rest, width), 1, width - len(rest))
            for s, rest in missing.items()
        ]
        rows = self._model.decode(spans)
        for seq_id, rest in missing.items():
            cached[seq_id].tokens.extend(rest)
            if len(rest) < width:
                self._model.truncate(seq_id, len(cached[seq_id].tokens))
        return rows

    def _bite(self, n_missing: int, share: int) -> int:
        """How much to feed at once before the last pass."""
        if self._model.steady and n_missing <= _STEADY_CATCH_UP:
            return 1
        return min(share, n_missing - 1)

    def _decode(self, fed: dict[int, list[int]], n_logits: int) -> list[Rows]:
        if not fed:
            return []
        cached = self._cached
        spans = [Span(s, len(cached[s].tokens), tokens, n_logits) for s, tokens in fed.items()]
        rows = self._model.decode(spans)
        for seq_id, tokens in fed.items():
            cached[seq_id].tokens.extend(tokens)
        return rows
