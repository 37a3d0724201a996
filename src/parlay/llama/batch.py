"""A batch: the rows of one pass, as llama.cpp takes them.

Knows spans and llama.cpp's structure; nothing of what is computed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from parlay.decoding.span import Span
from parlay.errors import BadRequest
from parlay.llama import binding


class Batch:
    """llama.cpp's batch structure over numpy memory, filled without a Python loop per row."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._tokens = np.zeros(capacity, np.int32)
        self._positions = np.zeros(capacity, np.int32)
        self._seq_ids = np.zeros(capacity, np.int32)
        self._n_seq_ids = np.ones(capacity, np.int32)
        self._wanted = np.zeros(capacity, np.int8)
        # Row i belongs to the one sequence named in _seq_ids[i].
        base = self._seq_ids.ctypes.data
        self._seq_id_pointers = (base + 4 * np.arange(capacity)).astype(np.uintp)
        self._counting = np.arange(capacity, dtype=np.int32)
        self._alone: tuple[int, int, slice] | None = None  # the last pass, if it was of one span
        self.struct = binding.Batch()
        for name, array in (
            ("token", self._tokens),
            ("pos", self._positions),
            ("n_seq_id", self._n_seq_ids),
            ("seq_id", self._seq_id_pointers),
            ("logits", self._wanted),
        ):
            setattr(self.struct, name, array.ctypes.data)

    def fill(self, spans: Sequence[Span]) -> int:
        """Write the spans; returns how many rows of logits they ask for."""
        at, n_outputs = 0, 0
        alone, self._alone = self._alone, None
        if len(spans) == 1 and (n := len(spans[0].tokens)) > 1 and n <= self.capacity:
            self._fill_alone(spans[0], n, alone)
            return spans[0].n_logits
        for span in spans:
            n = len(span.tokens)
            end = at + n
            if end > self.capacity:
                raise BadRequest(f"a pass holds {self.capacity} rows; lower the window or chunk")
            if n == 1:  # a drafter's every step: plain assignments are ten times quicker
                self._tokens[at] = span.tokens[0]
                self._positions[at] = span.start
                self._seq_ids[at] = span.seq_id
                self._wanted[at] = span.n_logits
            else:
                self._fill_run(at, end, span)
            at, n_outputs = end, n_outputs + span.n_logits
        self.struct.n_tokens = at
        return n_outputs

    def _fill_alone(self, span: Span, n: int, last: tuple[int, int, slice] | None) -> None:
        """A round's draft has the shape of the last one's as a rule: only its tokens are new."""
        self._alone = now = span.seq_id, n, span.read
        if now == last:
            self._tokens[:n] = span.tokens
            np.add(self._counting[:n], span.start, out=self._positions[:n])
        else:
            self._fill_run(0, n, span)
            self.struct.n_tokens = n

    def _fill_run(self, at: int, end: int, span: Span) -> None:
        self._tokens[at:end] = span.tokens
        np.add(self._counting[: end - at], span.start, out=self._positions[at:end])
        self._seq_ids[at:end] = span.seq_id
        self._wanted[at:end] = 0
        self._wanted[at:end][span.read] = 1
