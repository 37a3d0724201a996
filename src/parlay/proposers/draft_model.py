"""Draft with a small model: its own context, kept in step with each sequence by common prefix.

Knows nothing of the target. Nothing has to tell it what was accepted: it compares tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from parlay.decoding.draft import NOTHING_READY, Draft, Ready
from parlay.decoding.sampling import Row
from parlay.decoding.span import LoadedPasses, Span
from parlay.proposers.drafting import Drafting, DraftLimits
from parlay.proposers.proposer import Ask

# A steady model catches up in single-token passes as long as that beats one pass of a new shape.
_STEADY_CATCH_UP = 4
# The end of a prompt that is read beside the target: as many single tokens as passes of a new shape
# take longer, the first of them and the one that a GPU records.
_SETTLING = 2

Rows = NDArray[np.float32]  # of one sequence in one pass


@dataclass(slots=True)
class _Cached:
    """What the drafter's cache holds for one slot."""

    tokens: list[int] = field(default_factory=list)
    n_checked: int = 0  # so many tokens are known to equal the sequence's


@dataclass(frozen=True, slots=True)
class _Begun:
    """A pass that was started before anybody asked for what it says: a draft begins with it, or
    goes on with it."""

    span: Span
    n_tokens: int  # of the text, what is drafted of it included
    since: float  # when it was started
    chain: Drafting | None = None  # the draft that it goes on with

    def is_for(self, going: Sequence[Drafting]) -> bool:
        """Whether it is the next pass of just these."""
        if len(going) != 1:
            return False
        drafting = going[0]
        if drafting.begins + len(drafting.tokens) != self.n_tokens:
            return False
        if drafting.tokens:
            return drafting is self.chain
        ask = drafting.ask
        same = ask.seq_id == self.span.seq_id and ask.tokens[-1] == self.span.tokens[0]
        return same and self.chain is None


class DraftModel:
    """A drafter with a cache of its own, one row per sequence and pass."""

    continues = True

    def __init__(self, model: LoadedPasses, limits: DraftLimits, name: str = "model") -> None:
        self.name = name
        self.passes = model
        self._model = model
        self._limits = limits
        self._cached: dict[int, _Cached] = {}
        self._chains: dict[int, Drafting] = {}  # the latest draft of every sequence
        self._begun: _Begun | None = None  # what a device may be reading now

    def propose(self, asks: Sequence[Ask], *, runs_on: bool = False) -> list[Draft]:
        """`runs_on`: what comes after the draft will be asked for, too, as soon as it is made."""
        try:
            return self._propose(asks, runs_on)
        except Exception:
            self._reset()  # what the cache holds now is unknown
            raise

    def set_out(self, ask: Ask) -> None:
        """A draft for this text is likely to be asked for: let a GPU read what is new of it while
        that is weighed. Nothing is begun where something is drafted already."""
        if not self._model.steady or not self._has_room(ask):
            return
        chain = self._chains.get(ask.seq_id)
        if chain is not None and chain.n_agreed(ask.tokens) not in (None, len(chain.tokens)):
            return
        try:
            lacking = self._lacking(ask.seq_id, ask.tokens)
            if len(lacking) > _STEADY_CATCH_UP:
                return
            cached = self._cached[ask.seq_id].tokens
            for token in lacking:
                span = Span(ask.seq_id, len(cached), [token], 1)
                self._model.start([span])
                cached.append(token)
            # The text may be longer by now.
            self._begun = _Begun(span, len(cached), perf_counter())
        except Exception:
            self._reset()
            raise

    def _propose(self, asks: Sequence[Ask], runs_on: bool) -> list[Draft]:
        drafting = [self._drafting(ask) for ask in asks]
        going = [d for d in drafting if self._has_room(d.ask) and d.lacks_more]
        if len(going) > 1:  # llama.cpp batches neighbours only if their ids come in order
            going.sort(key=lambda d: d.ask.seq_id)
        rows = self._catch_up(going)
        if len(going) == 1:
            runs_on = runs_on and self._model.steady and not going[0].ask.bound
            go_on = self._run_on if runs_on else self._go_on_alone
            go_on(going[0], rows[0][-1])
            going = []
        while going:
            on = list[Drafting]()
            for d, row in zip(going, rows, strict=True):
                if d.add(row[-1]) and d.worth_going_on:
                    on.append(d)
            going, rows = on, self._advance(on)
        return [d.draft(self.name) for d in drafting]

    def _drafting(self, ask: Ask) -> Drafting:
        """What was drafted before and not verified, if the text went that way; else a new one."""
        chain = self._chains.get(ask.seq_id)
        return self._begin(ask) if chain is None or not chain.take_up(ask) else chain

    def _begin(self, ask: Ask) -> Drafting:
        chain = Drafting(ask, self._limits.ends, self._limits.n_vocab)
        self._chains[ask.seq_id] = chain
        return chain

    # -- ahead ----------------------------------------------------------------

    def chain(self, seq_id: int) -> Drafting | None:
        """The latest draft of a sequence, committed or not."""
        return self._chains.get(seq_id)

    def made(self, ask: Ask) -> Draft | None:
        """A draft for which no pass is needed; None where one is."""
        chain = self._chains.get(ask.seq_id)
        if chain is None or not chain.take_up(ask) or chain.lacks_more:
            return None
        return chain.draft(self.name)

    def ready(self, seq_id: int, tokens: Sequence[int]) -> Ready:
        """What is drafted already for a text; what was drafted ahead is told once."""
        chain = self._chains.get(seq_id)
        return NOTHING_READY if chain is None else chain.ready(tokens)

    def go_on(self, chains: Sequence[Drafting]) -> None:
        """One more token for each, whether anybody has asked for it or not."""
        try:
            started = self._since(chains)
            rows = self._advance(chains)
            seconds = perf_counter() - started
            for chain, row in zip(chains, rows, strict=True):
                chain.add(row[-1], seconds)
        except Exception:
            self._reset()
            raise

    def _since(self, chains: Sequence[Drafting]) -> float:
        """When the pass was started that is next for these; now, if it is still to come."""
        begun = self._begun
        return perf_counter() if begun is None or not begun.is_for(chains) else begun.since

    def can_go_on(self, chain: Drafting) -> bool:
        """Whether another token has a place."""
        if not chain.tokens or chain.tokens[-1] in self._limits.ends:
            return False
        return chain.begins + len(chain.tokens) < self._model.context_size

    def read(self, ask: Ask) -> Iterator[int]:
        """Take a text in that nobody asks a draft of yet, one pass at a step; how far it is read.

        The end is read token by token, so that the shape of drafts is settled in. Its last pass
        says what comes next: the first token of a draft that can be gone on with.
        """
        n_single, seq_id = _SETTLING if self._model.steady else 0, ask.seq_id
        try:
            rest = self._lacking(seq_id, ask.tokens)
            while rest:
                n = max(1, min(self._limits.n_batch, len(rest) - n_single))
                rows = self._decode({seq_id: rest[:n]}, n_logits=int(n == 1))
                rest, slot = rest[n:], self._slot(seq_id)
                slot.n_checked = len(slot.tokens)
                if n == 1 and not rest and not ask.bound:
                    self._begin(ask).add(rows[0][-1])
                yield slot.n_checked
        except Exception:
            self._reset()
            raise

    def forget(self, seq_id: int) -> None:
        # The cache may share a prefix with what comes next: keep it, trust none of it.
        self._slot(seq_id).n_checked = 0
        self._chains.pop(seq_id, None)
        self._begun = None

    def finish(self, seq_id: int, tokens: Sequence[int]) -> None:
        """Nothing to learn; the cache stays for the next turn."""

    def shift(self, seq_id: int, keep: int, discard: int) -> None:
        slot = self._slot(seq_id)
        self._chains.pop(seq_id, None)
        self._begun = None
        # Move what the target moved; a cache that cannot, or ends before that, is cut.
        if slot.n_checked >= keep + discard and self._model.can_shift:
            self._model.shift(seq_id, keep, discard)
            del slot.tokens[keep : keep + discard]
            slot.n_checked -= discard
        else:
            self._cut(seq_id, min(slot.n_checked, keep))

    def close(self) -> None:
        self._model.close()

    # -- the cache ------------------------------------------------------------

    def _reset(self) -> None:
        for seq_id in self._cached:
            self._model.clear(seq_id)
        self._cached.clear()
        self._chains.clear()
        self._begun = None

    def _has_room(self, ask: Ask) -> bool:
        return ask.window > 0 and len(ask.tokens) + ask.window <= self._model.context_size

    def _slot(self, seq_id: int) -> _Cached:
        slot = self._cached.get(seq_id)
        if slot is None:
            slot = self._cached[seq_id] = _Cached()
        return slot

    def _cut(self, seq_id: int, length: int) -> None:
        slot = self._slot(seq_id)
        kept = self._model.reusable(seq_id, length) if length < len(slot.tokens) else length
        if kept < len(slot.tokens):
            self._model.truncate(seq_id, kept)
            del slot.tokens[kept:]
        slot.n_checked = min(slot.n_checked, kept)

    def _missing(self, drafting: Drafting) -> list[int]:
        """Cut the cache to what it shares with the sequence; return what it lacks, at least one."""
        if drafting.tokens:  # drafted before: all but the last one was read then
            return self._last(drafting)
        return self._lacking(drafting.ask.seq_id, drafting.ask.tokens)

    def _last(self, drafting: Drafting) -> list[int]:
        """The last token of a draft, to be read; the cache may have it from a pass whose row
        nobody took. One that cannot be cut there has lost more, which comes before it."""
        before, seq_id = drafting.begins + len(drafting.tokens) - 1, drafting.ask.seq_id
        self._cut(seq_id, before)
        n = len(self._cached[seq_id].tokens)
        if n == before:
            return drafting.tokens[-1:]
        return [*drafting.ask.tokens[: drafting.begins], *drafting.tokens][n:]

    def _lacking(self, seq_id: int, tokens: Sequence[int]) -> list[int]:
        slot = self._slot(seq_id)
        n, end = slot.n_checked, min(len(slot.tokens), len(tokens) - 1)
        n = min(n, end)
        while n < end and slot.tokens[n] == tokens[n]:
            n += 1
        self._cut(seq_id, n)
        slot.n_checked = len(slot.tokens)
        return list(tokens[len(slot.tokens) :])

    def _catch_up(self, going: Sequence[Drafting]) -> list[Rows]:
        """Feed every sequence's missing tokens; return their rows, those of the last ones last."""
        begun = self._fetched(going)
        if begun is not None:
            self._mark(going)
            return begun
        missing = {d.ask.seq_id: self._missing(d) for d in going}
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
        self._mark(going)
        return rows

    def _fetched(self, going: Sequence[Drafting]) -> list[Rows] | None:
        """What a pass says that was begun for just this draft."""
        begun, self._begun = self._begun, None
        if begun is None or not begun.is_for(going):
            return None
        return self._model.fetch([begun.span])

    def _mark(self, going: Sequence[Drafting]) -> None:
        """Where a cache that cannot be cut comes back to, if the draft fails."""
        for d in going:
            if not d.tokens:
                self._model.mark(d.ask.seq_id)

    def _bite(self, n_missing: int, share: int) -> int:
        """How much to feed at once before the last pass."""
        if self._model.steady and n_missing <= _STEADY_CATCH_UP:
            return 1
        return min(share, n_missing - 1)

    def _decode(self, fed: dict[int, list[int]], n_logits: int) -> list[Rows]:
        if not fed:
            return []
        self._begun = None
        cached, spans = self._cached, []
        for seq_id, tokens in fed.items():  # each was looked up before: what it lacks is known
            spans.append(Span(seq_id, len(cached[seq_id].tokens), tokens, n_logits))
        rows = self._model.decode(spans)
        for seq_id, tokens in fed.items():
            cached[seq_id].tokens.extend(tokens)
        return rows

    # -- drafting -------------------------------------------------------------

    def _go_on_alone(self, d: Drafting, row: Row) -> None:
        """Draft for one sequence: every token is a pass, and nothing is built for it."""
        cached, tokens, decode = self._cached[d.ask.seq_id].tokens, d.tokens, self._model.decode
        span = Span(d.ask.seq_id, 0, last := [0], 1)
        spans = [span]
        while d.add(row) and d.worth_going_on:
            last[0], span.start = tokens[-1], len(cached)
            cached.append(last[0])
            row = decode(spans)[0][-1]

    def _run_on(self, d: Drafting, row: Row) -> None:
        """The same where the drafter goes on beside the target's pass: the next token is read
        while it is weighed whether this draft wants it, and while the target's pass is made up."""
        cached, tokens, model = self._cached[d.ask.seq_id].tokens, d.tokens, self._model
        span = Span(d.ask.seq_id, 0, last := [0], 1)
        spans, ends, n_most = [span], self._limits.ends, model.context_size - d.begins
        wanted = d.add(row)
        while tokens and tokens[-1] not in ends and len(tokens) < n_most:
            last[0], span.start = tokens[-1], len(cached)
            since = perf_counter()
            model.start(spans)
            cached.append(last[0])
            if not (wanted and d.worth_going_on):
                self._begun = _Begun(span, len(cached), since, d)
                return
            wanted = d.add(model.fetch(spans)[0][-1])

    def _advance(self, going: Sequence[Drafting]) -> list[Rows]:
        """Every draft's last token, one row each: the shape stays the same from pass to pass."""
        if not going:
            return []
        begun = self._fetched(going)
        if begun is not None:
            return begun
        lacking = [self._last(d) for d in going]
        if any(len(tokens) > 1 for tokens in lacking):
            return self._catch_up(going)
        spans = []
        for d, last in zip(going, lacking, strict=True):
            cached = self._cached[d.ask.seq_id].tokens
            spans.append(Span(d.ask.seq_id, len(cached), last, 1))
            cached.extend(last)
        return self._model.decode(spans)
