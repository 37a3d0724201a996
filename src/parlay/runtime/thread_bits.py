"""Which numbers of threads give the same logits to the bit: kernels may part sums by them.

Knows passes and their class; nothing of prices. Tried at the ends of sequences' own texts, once for
each number of threads, of sequences and length of text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from parlay.decoding.span import Passes, Span
from parlay.llama.threads import Threads
from parlay.runtime.exactness import ExactClass, band
from parlay.runtime.walking import Budget, Digest, Run, Walker, digest
from parlay.timing.probe_text import probe_tokens

_N_WIDTHS = 3  # of a class that stand for all, beside its widest
_N_PROMPT = 32  # rows that stand for a prompt's chunk: its end reads what all of them left behind

Found = Callable[[], ExactClass]  # the class as it is now
_Key = tuple[int, int, int]  # threads, sequences (0: a prompt), band of lengths


class ThreadBits:
    """What is known of one target; `rule` threads made everything that others are compared with."""

    def __init__(
        self, passes: Passes, threads: Threads, rule: int, found: Found, *, cuts: bool
    ) -> None:
        """`cuts`: whether the cache can be cut anywhere; else nothing can be tried."""
        self._passes = passes
        self._threads = threads
        self._rule = rule
        self._found = found
        self._cuts = cuts
        self._same: dict[_Key, bool] = {}

    def known(self, n: int, spans: Sequence[Span]) -> bool:
        """Whether so many threads are known to give this pass the bits of the rule."""
        keys = self._keys(n, spans)
        return n == self._rule or all(self._same.get(key, False) for key in keys)

    def same(self, n: int, spans: Sequence[Span]) -> bool:
        """The same, tried now where nobody has; the spans' caches are left as they were."""
        if n == self._rule:
            return True
        if any(key not in self._same for key in self._keys(n, spans)) and self._cuts:
            held = self._try(n, spans)
            for key in self._keys(n, spans):
                self._same[key] = held
        return self.known(n, spans)

    def _keys(self, n: int, spans: Sequence[Span]) -> set[_Key]:
        size = 0 if _is_prompt(spans) else len(spans)
        return {(n, size, band(span.start)) for span in spans}

    def _try(self, n: int, spans: Sequence[Span]) -> bool:
        if _is_prompt(spans):
            return len(spans) == 1 and self._reads_alike(n, spans[0])
        room = self._passes.context_size - max(span.start for span in spans)
        widths = [rows for rows in self._found().rows_for(len(spans)) if rows <= room]
        few = {*widths[:_N_WIDTHS], *widths[-1:]}
        return bool(few) and all(self._agrees(n, spans, width) for width in sorted(few))

    def _reads_alike(self, n: int, span: Span) -> bool:
        tokens = span.tokens[:_N_PROMPT]
        part = Span(span.seq_id, span.start, tokens, 1)
        return self._end(self._rule, part) == self._end(n, part)

    def _end(self, n: int, part: Span) -> Digest:
        before, self._threads.n = self._threads.n, n
        try:
            return digest(self._passes.decode([part])[0][0])
        finally:
            self._passes.truncate(part.seq_id, part.start)
            self._threads.n = before

    def _agrees(self, n: int, spans: Sequence[Span], width: int) -> bool:
        return self._rows(self._rule, spans, width) == self._rows(n, spans, width)

    def _rows(self, n: int, spans: Sequence[Span], width: int) -> list[list[Digest]]:
        before, self._threads.n = self._threads.n, n
        size = self._passes.n_vocab
        runs = [Run(s.seq_id, s.start, probe_tokens(width, size, s.start)) for s in spans]
        walker = Walker(self._passes, 1, Budget(float("inf")))
        try:
            return walker.steps(runs, width)
        finally:
            for run in runs:
                walker.cut(run)
            self._threads.n = before


def _is_prompt(spans: Sequence[Span]) -> bool:
    """Whether part of a text is read whose logits nobody asks for."""
    return any(span.n_logits < len(span.tokens) for span in spans)
