"""Walks through a text in passes of chosen shapes, and the hash of the logits at every place.

Knows only `Passes`; the probes compare what it tells.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from parlay.decoding.span import Passes, Span, pad

Digest = bytes


@dataclass(frozen=True, slots=True)
class WalkedRun:
    """Real tokens of one sequence for one pass; the rest of its rows is padding."""

    seq_id: int
    start: int
    tokens: Sequence[int]
    prefix: Sequence[int] = ()  # what is cached before it, where that is known


class OutOfTime(Exception):
    """The budget was spent in the middle of a question."""


@dataclass(slots=True)
class Budget:
    """Time for a probe. On a busy machine it counts rows at the speed of the fastest single pass
    seen, which makes the probe slower, not blinder; a model that is slow by itself gets fewer."""

    seconds: float
    started: float = field(default_factory=lambda: perf_counter())  # noqa: PLW0108 - looked up when made
    fastest_s: float = float("inf")
    n_rows: int = 0

    def spend(self, n_rows: int) -> None:
        self.n_rows += n_rows
        if min(perf_counter() - self.started, self.n_rows * self.fastest_s) > self.seconds:
            raise OutOfTime

    def note(self, n_rows: int, seconds: float) -> None:
        if n_rows == 1:
            self.fastest_s = min(self.fastest_s, seconds)


class Walker:
    """Makes passes and takes their padding back."""

    def __init__(self, passes: Passes, chunk: int, budget: Budget) -> None:
        self.passes = passes
        self.chunk = chunk
        self._budget = budget

    def read(self, prefix: Sequence[int], seq_id: int = 0) -> list[Digest]:
        """A text into an empty cache, in chunks; what each of them ends with."""
        self.passes.clear(seq_id)
        chunks = (prefix[at : at + self.chunk] for at in range(0, len(prefix), self.chunk))
        found = [
            digest(self._decode([Span(seq_id, i * self.chunk, chunk, 1)])[0][0])
            for i, chunk in enumerate(chunks)
        ]
        self.passes.mark(seq_id, lasting=True)
        return found

    def end(self, prompt: Sequence[int]) -> Digest:
        """A prompt of one chunk, read as prompts are: only its last logits are asked for."""
        self.passes.clear(0)
        return digest(self._decode([Span(0, 0, prompt, 1)])[0][0])

    @property
    def cuts(self) -> bool:
        """Whether the cache, which holds a text now, can be cut anywhere."""
        half = self.passes.length(0) // 2
        return self.passes.reusable(0, half) == half

    def cut(self, run: WalkedRun) -> None:
        """Take back whatever followed the start of a run."""
        if run.prefix:
            self.rewind(run.prefix, run.seq_id)
        else:
            self.passes.truncate(run.seq_id, run.start)

    def rewind(self, prefix: Sequence[int], seq_id: int = 0) -> None:
        """Leave just the prefix in the cache; one without a mark there has to read it again."""
        if self.passes.reusable(seq_id, len(prefix)) == len(prefix):
            self.passes.truncate(seq_id, len(prefix))
        else:
            self.read(prefix, seq_id)

    def steps(self, runs: Sequence[WalkedRun], width: int) -> list[list[Digest]]:
        """One pass with so many rows of every sequence."""
        spans = [Span(run.seq_id, run.start, pad(run.tokens, width), width) for run in runs]
        rows = self._decode(spans)
        found = [
            [digest(row) for row in own[: len(run.tokens)]]
            for own, run in zip(rows, runs, strict=True)
        ]
        for run in runs:
            if len(run.tokens) < width:
                self.passes.truncate(run.seq_id, run.start + len(run.tokens))
        return found

    def step(self, start: int, tokens: Sequence[int], width: int, seq_id: int = 0) -> list[Digest]:
        """One pass of one sequence."""
        return self.steps([WalkedRun(seq_id, start, tokens)], width)[0]

    def walk(
        self, start: int, tokens: Sequence[int], width: int, seq_id: int = 0
    ) -> Iterator[Digest]:
        """One real row a pass, the others padding."""
        for i, token in enumerate(tokens):
            yield self.step(start + i, [token], width, seq_id)[0]

    def mixed(
        self, start: int, tokens: Sequence[int], widths: Sequence[int], seq_id: int = 0
    ) -> Iterator[Digest]:
        """Any of these widths after any other, any number of rows real: as an answer goes."""
        dice, at = random.Random(start), 0
        while at < len(tokens):
            width = dice.choice(widths)
            n = min(dice.randint(1, width), len(tokens) - at)
            yield from self.step(start + at, tokens[at : at + n], width, seq_id)
            at += n

    def _decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
        n_rows = sum(len(span.tokens) for span in spans)
        self._budget.spend(n_rows)
        started = perf_counter()
        rows = self.passes.decode(spans)
        self._budget.note(n_rows, perf_counter() - started)
        return rows


def digest(row: NDArray[np.float32]) -> Digest:
    return hashlib.blake2b(row.tobytes(), digest_size=16).digest()
