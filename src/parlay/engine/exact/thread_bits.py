"""Which numbers of threads give the same logits to the bit: kernels may part sums by them.

Knows passes; nothing of prices. Tried at the ends of sequences' own texts, once for each number of
threads, of sequences, of rows and length of text, and only for passes that are about to be made:
on a busy machine a trial of every width would take seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from parlay.decoding.span import Passes, Span
from parlay.engine.exact.probe import Digest, Run, Walker, digest
from parlay.engine.exact.shapes import band
from parlay.errors import ParlayError
from parlay.llama.kernels import PROMPT_ROWS
from parlay.llama.threads import Threads
from parlay.timing.probe_text import probe_tokens

_N_PROMPT = PROMPT_ROWS  # that stand for a chunk: its end reads what all of them left behind

# Threads, sequences, rows of each, band of lengths; of a prompt 0 and whether it is read apart.
_Key = tuple[int, int, int, int]


class ThreadBits:
    """What is known of one target; `rule` threads made everything that others are compared with."""

    def __init__(self, passes: Passes, threads: Threads, rule: int, *, cuts: bool) -> None:
        """`cuts`: whether the cache can be cut anywhere; else nothing can be tried."""
        self._passes = passes
        self._threads = threads
        self._rule = rule
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
        for key in self._keys(n, spans):
            if key not in self._same and self._cuts:
                self._same[key] = self._try(key, spans)
        return self.known(n, spans)

    def _keys(self, n: int, spans: Sequence[Span]) -> set[_Key]:
        if is_prompt(spans):
            return {(n, 0, int(span.apart), band(span.start)) for span in spans}
        return {(n, len(spans), len(span.tokens), band(span.start)) for span in spans}

    def _try(self, key: _Key, spans: Sequence[Span]) -> bool:
        n, _, width, _ = key
        try:
            if is_prompt(spans):
                return len(spans) == 1 and self._reads_alike(n, spans[0])
            room = self._passes.context_size - max(span.start for span in spans)
            return width <= room and self._agrees(n, spans, width)
        except ParlayError:  # no answer fails for it: what cannot be tried is not known to be alike
            return False

    def _reads_alike(self, n: int, span: Span) -> bool:
        tokens = span.tokens[:_N_PROMPT]
        part = replace(span, tokens=tokens, n_logits=1)
        return self._end(self._rule, part) == self._end(n, part)

    def _end(self, n: int, part: Span) -> Digest:
        try:
            with self._threads.meanwhile(n):
                return digest(self._passes.decode([part])[0][0])
        finally:
            self._passes.truncate(part.seq_id, part.start)

    def _agrees(self, n: int, spans: Sequence[Span], width: int) -> bool:
        return self._rows(self._rule, spans, width) == self._rows(n, spans, width)

    def _rows(self, n: int, spans: Sequence[Span], width: int) -> list[list[Digest]]:
        size = self._passes.n_vocab
        runs = [Run(s.seq_id, s.start, probe_tokens(width, size, s.start)) for s in spans]
        walker = Walker(self._passes)
        try:
            with self._threads.meanwhile(n):
                return walker.steps(runs, width)
        finally:
            for run in runs:
                self._passes.truncate(run.seq_id, run.start)

    # -- what is kept ---------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        return {"same": [[*key, same] for key, same in sorted(self._same.items())]}

    def recall(self, record: Mapping[str, Any]) -> None:
        """What an earlier run tried; raises ValueError or LookupError where it is no record."""
        for n, sequences, rows, length, same in record["same"]:
            self._same[int(n), int(sequences), int(rows), int(length)] = bool(same)


def is_prompt(spans: Sequence[Span]) -> bool:
    """Whether part of a text is read whose logits nobody asks for."""
    return any(span.n_logits < len(span.tokens) for span in spans)
