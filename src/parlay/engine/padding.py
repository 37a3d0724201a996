"""Padding of passes: adds the rows that spare a pass being cut in parts, and takes them back.

Knows spans, slots and prices; knows nothing of drafts or of who reads what.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial

from parlay.control.prices.cost import CostTable
from parlay.control.prices.curve import MAX_ROWS, Curve
from parlay.control.prices.cutting import Cutting, PassPart, seconds
from parlay.control.prices.packing import is_whole, padded, unmeasured
from parlay.decoding.span import Passes, Span
from parlay.engine.slots import Slots


class Padding:
    """Shapes the passes of one target."""

    def __init__(
        self,
        target: Passes,
        slots: Slots,
        cutting: Cutting,
        prices: Callable[[], CostTable | None] = lambda: None,
    ) -> None:
        self.cutting = cutting
        self._target = target
        self._slots = slots
        self._prices = prices

    def pad(self, spans: Sequence[Span]) -> Sequence[Span]:
        """The spans of a pass, which come in order of their ids, with the padding that pays; the
        very same where none does."""
        if len(spans) == 1:
            return spans
        rows = {span.seq_id: len(span.tokens) for span in spans}
        if is_whole(rows) or self.cutting.unified or self.cutting.recurrent:
            return spans  # and to take a token back out of a state is dear
        fixed, spare = self._fixed(spans), self._spare(spans)
        found = padded(rows, fixed, spare, self.cutting, self._price(spans))
        given = {span.seq_id: span for span in spans}
        return [
            _longer(given[seq_id], n) if seq_id in given else self._filler(seq_id, n, spans)
            for seq_id, n in found.items()
        ]

    def take_back(self, spans: Sequence[Span]) -> None:
        """Idle sequences hold again what they held before the pass."""
        for span in spans:
            if span.n_padding == len(span.tokens):
                self._slots.keep(span.seq_id, span.start)

    def _price(self, spans: Sequence[Span]) -> Callable[..., float]:
        """Rounds are priced by their sequences and rows, the reading of prompts by its rows."""
        costs = self._prices()
        reads = any(span.n_logits < len(span.tokens) for span in spans)
        if costs is None or (reads and costs.prompt is None):
            return unmeasured
        if reads and costs.prompt is not None:
            return partial(_reading_s, costs.prompt)
        return partial(seconds, costs=costs, n_context=max(span.start for span in spans))

    def _fixed(self, spans: Sequence[Span]) -> Collection[int]:
        """Sequences whose prompt goes on, or who have no room for as many rows as the longest."""
        ending = [span for span in spans if span.n_logits]
        room = self._target.context_size - max((len(span.tokens) for span in ending), default=0)
        can = {span.seq_id for span in ending if span.start <= room}
        return {span.seq_id for span in spans} - can

    def _spare(self, spans: Sequence[Span]) -> Collection[int]:
        """Idle sequences with room for as many rows as the longest draft."""
        most = max(len(span.tokens) for span in spans)
        room = self._target.context_size - most
        idle = (slot.seq_id for slot in self._slots.all if not slot.busy)
        return {seq_id for seq_id in idle if self._target.length(seq_id) <= room}

    def _filler(self, seq_id: int, n: int, spans: Sequence[Span]) -> Span:
        tokens = [spans[0].tokens[-1]] * n
        return Span(seq_id, self._target.length(seq_id), tokens, 0, n)


def _reading_s(prompt: Curve, parts: Sequence[PassPart]) -> float:
    """Beyond what a table holds, as many times the most that it does."""
    rows = [part.n_rows for part in parts]
    return sum(max(1.0, n / MAX_ROWS) * prompt.of(min(n, MAX_ROWS), False) for n in rows)


def _longer(span: Span, n: int) -> Span:
    """With padding up to n tokens."""
    missing = n - len(span.tokens)
    if not missing:
        return span
    tokens = [*span.tokens, *[span.tokens[-1]] * missing]
    return replace(span, tokens=tokens, n_padding=missing)
