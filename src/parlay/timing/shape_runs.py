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
# A GPU pays for a change of shape twice: the second pass records what later ones repeat.
_N_SAME = 4
_SMALL_CHUNK = 16  # rows of a pass that reads the text: any batch holds that many


@dataclass(frozen=True, slots=True)
class TimedShape:
    """A pass over `n_sequences`, `n_rows` each."""

    n_sequences: int
    n_rows: int
    reads_logits: bool = True  # False: as a prompt is read

    @property
    def total(self) -> int:
        return self.n_sequences * self.n_rows


@dataclass(slots=True)
class Times:
    """Seconds of equal passes, by how many of the same shape came right before."""

    steady: list[float] = field(default_factory=list)  # two at least
    settling: list[float] = field(default_factory=list)  # one: a GPU records what it will repeat
    changed: list[float] = field(default_factory=list)  # none

    @property
    def best_known(self) -> list[float]:
        """The steady ones; where there was no room for any, those that bound them from above."""
        return self.steady or self.changed or self.settling


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
        self._last: TimedShape | None = None
        self._n_before = 0  # passes of that shape in a row
        self._n_read = 0  # sequences that hold the text
        self.n_runs = 0

    def fits(self, shape: TimedShape) -> bool:
        return self.n_context + shape.n_rows <= self._passes.context_size

    def run(self, shape: TimedShape) -> tuple[float, int]:
        """One pass: its seconds, and how many of the same shape came right before it."""
        sequences, n = range(shape.n_sequences), shape.n_rows
        for s in sequences:
            self._make_room(s, n)
        self._n_read = max(self._n_read, shape.n_sequences)
        n_logits = n if shape.reads_logits else 0
        self.n_runs += 1  # each pass reads another place of the text
        spans = [
            Span(s, self._passes.length(s), self._tokens(n, self.n_runs + s), n_logits)
            for s in sequences
        ]
        n_before = self._n_before if shape == self._last else 0
        began = self._clock()
        self._passes.decode(spans)
        took = self._clock() - began
        self._last, self._n_before = shape, n_before + 1
        for s in sequences:
            self._cut(s)
        return max(took, 1e-9), n_before

    def begin_turn(self) -> None:
        """Every text as long as it should be."""
        for s in range(self._n_read):
            if self._passes.length(s) != self.n_context:
                self._read(s)

    def clear(self) -> None:
        """Leave nothing behind."""
        for s in range(self._n_read):
            self._passes.clear(s)
        self._n_read = 0

    def _make_room(self, seq_id: int, n_rows: int) -> None:
        full = self._passes.length(seq_id) + n_rows > self._passes.context_size
        if seq_id >= self._n_read or full:
            self._read(seq_id)

    def _read(self, seq_id: int) -> None:
        self._passes.clear(seq_id)
        tokens = self._tokens(self.n_context, seq_id)
        for at in range(0, len(tokens), self._chunk):
            self._passes.decode([Span(seq_id, at, tokens[at : at + self._chunk], 0)])
        self._last = None  # passes of other shapes

    def _tokens(self, n: int, place: int) -> list[int]:
        return real_tokens(self._passes, n, place=place)

    def _cut(self, seq_id: int) -> None:
        """Only the text again. A recurrent cache cannot be cut: to read it anew would change the
        shape, so its text goes on until the next turn."""
        if self._passes.reusable(seq_id, self.n_context) == self.n_context:
            self._passes.truncate(seq_id, self.n_context)


def time_shapes(
    passes: Passes,
    shapes: Sequence[TimedShape],
    *,
    n_times: int,
    budget_s: float,
    n_context: int,
    chunk: int = _SMALL_CHUNK,
    warm: bool = True,
    n_same: int = _N_SAME,
    whole: bool = True,
    clock: Clock = time.perf_counter,
    progress: Callable[[str], None] = lambda _line: None,
) -> dict[TimedShape, Times]:
    """Round after round over all shapes, so that a slow moment does not hit one shape only.

    Where a change of shape costs something, every shape runs `n_same` times in a row: the first two
    pay for the change, the others cost what a shape that is stayed in does. The budget ends the
    rounds; `whole`: not the first one that is timed; one pass is made however little time there is.
    What does not fit the context is left out.
    """
    deadline = clock() + budget_s
    track = Track(passes, n_context, clock, chunk)
    found = {shape: Times() for shape in shapes if track.fits(shape)}
    turns: Iterable[bool] = chain([False] if warm else [], repeat(True, n_times))
    try:
        for n, timed in enumerate(turns):
            for shape, times in found.items():
                may_end = n > int(warm) or (not whole and track.n_runs)
                if may_end and clock() > deadline:
                    break
                _one_turn(track, shape, times if timed else Times(), n_same if passes.steady else 1)
            progress(f"context {n_context}: round {n + 1}, {len(found)} shapes")
    finally:
        track.clear()
    return found


def _one_turn(track: Track, shape: TimedShape, times: Times, n_same: int) -> None:
    """`n_same` is 1 where a change of shape costs nothing: then every pass is a steady one."""
    track.begin_turn()
    for _ in range(n_same):
        seconds, n_before = track.run(shape)
        kinds = (times.changed, times.settling, times.steady)
        (kinds[min(n_before, 2)] if n_same > 1 else times.steady).append(seconds)
