"""Passes run shape by shape, to warm them up or to time them: so many sequences, so many rows each.

Knows only `Passes`; whoever calls it must be on the thread that owns the model. A `Stopwatch`
(measuring.py) times passes that others make; here they are made to be timed, round after round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat

from parlay.decoding.span import Passes, Span
from parlay.timing.probe_text import real_tokens

Clock = Callable[[], float]
_SMALL_CHUNK = 16  # rows of a pass that reads the text: any batch holds that many


@dataclass(frozen=True, slots=True)
class Shape:
    """A pass over `n_sequences`, `n_rows` each."""

    n_sequences: int
    n_rows: int
    reads_logits: bool = True  # False: as a prompt is read

    @property
    def total(self) -> int:
        return self.n_sequences * self.n_rows


@dataclass(slots=True)
class Times:
    """Seconds of equal passes: after one of the same shape, and after one of another."""

    steady: list[float] = field(default_factory=list)
    changed: list[float] = field(default_factory=list)


class Track:
    """The first sequences of a model, each with a text of the same length in the cache."""

    def __init__(
        self,
        passes: Passes,
        n_context: int,
        clock: Clock = time.perf_counter,
        chunk: int = _SMALL_CHUNK,
    ) -> None:
        self._passes = passes
        self._clock = clock
        self._chunk = chunk
        self.n_context = n_context
        self._last: Shape | None = None
        self._n_read = 0  # sequences that hold the text
        self._n_runs = 0

    def fits(self, shape: Shape) -> bool:
        return self.n_context + shape.n_rows <= self._passes.context_size

    def run(self, shape: Shape) -> tuple[float, bool]:
        """One pass: its seconds, and whether its shape differs from the last one."""
        for s in range(self._n_read, shape.n_sequences):
            self._read(s)
        self._n_read = max(self._n_read, shape.n_sequences)
        at, n = self.n_context, shape.n_rows
        n_logits = n if shape.reads_logits else 0
        self._n_runs += 1  # each pass reads another place of the text
        spans = [
            Span(s, at, real_tokens(self._passes, n, place=self._n_runs + s), n_logits)
            for s in range(shape.n_sequences)
        ]
        began = self._clock()
        self._passes.decode(spans)
        took = self._clock() - began
        changed, self._last = shape != self._last, shape
        for s in range(shape.n_sequences):
            self._rewind(s)
        return max(took, 1e-9), changed

    def clear(self) -> None:
        """Leave nothing behind."""
        for s in range(self._n_read):
            self._passes.clear(s)
        self._n_read = 0

    def _read(self, seq_id: int) -> None:
        self._passes.clear(seq_id)
        tokens = real_tokens(self._passes, self.n_context, place=seq_id)
        for at in range(0, len(tokens), self._chunk):
            self._passes.decode([Span(seq_id, at, tokens[at : at + self._chunk], 0)])

    def _rewind(self, seq_id: int) -> None:
        """Only the text again; a recurrent cache has to read it anew."""
        if self._passes.reusable(seq_id, self.n_context) == self.n_context:
            self._passes.truncate(seq_id, self.n_context)
        else:
            self._read(seq_id)


def time_shapes(
    passes: Passes,
    shapes: Sequence[Shape],
    *,
    n_times: int,
    budget_s: float,
    n_context: int,
    chunk: int = _SMALL_CHUNK,
    warm: bool = True,
    n_same: int = 2,
    whole: bool = True,
    clock: Clock = time.perf_counter,
    progress: Callable[[str], None] = lambda _line: None,
) -> dict[Shape, Times]:
    """Round after round over all shapes, so that a slow moment does not hit one shape only.

    Where a change of shape costs something, every shape runs `n_same` times in a row. The budget
    ends the rounds; `whole`: not the first one that is timed. What does not fit the context is left
    out.
    """
    deadline = clock() + budget_s
    track = Track(passes, n_context, clock, chunk)
    found = {shape: Times() for shape in shapes if track.fits(shape)}
    turns: Iterable[bool] = chain([False] if warm else [], repeat(True, n_times))
    try:
        for n, timed in enumerate(turns):
            for shape, times in found.items():
                if (n > int(warm) or not whole) and clock() > deadline:
                    break
                _one_turn(track, shape, times if timed else Times(), n_same if passes.steady else 1)
            progress(f"context {n_context}: round {n + 1}, {len(found)} shapes")
    finally:
        track.clear()
    return found


def _one_turn(track: Track, shape: Shape, times: Times, n_same: int) -> None:
    for _ in range(n_same):
        seconds, changed = track.run(shape)
        (times.changed if changed and n_same > 1 else times.steady).append(seconds)
