"""Joints: in which passes an exact prompt is read, and where a next turn can go on from.

All of it follows from the tokens of the text, so that a cold cache and a warm one get the same
bits. Knows nothing of caches.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from parlay.engine.exact.turn_marks import TurnMarks
from parlay.llama.kernels import PROMPT_ROWS


@dataclass(frozen=True, slots=True)
class Joints:
    """Where a prompt can be gone on with and have the bits of one that was read at once.

    A chunk is read either apart, always in the same pass, which then need not agree with others to
    the bit; or in any passes, which agree. Deep in a text all chunks are read apart. Before that,
    those in which no answer's tokens can lie, as far as marks tell; of a chunk in which an answer
    begins, what comes well before it.
    """

    step: int  # tokens of a chunk
    anywhere_until: int = 0  # tokens from which on everything is read apart
    marks: TurnMarks | None = None  # None: an answer's tokens may be anywhere
    kernels: bool = False  # whether prompts have some of their own; else nothing is read apart

    def next_pass(self, tokens: Seq[int], start: int) -> tuple[int, bool]:
        """How many tokens of a text are read in one pass from there on, and whether apart."""
        chunk = start - start % self.step
        end = min(chunk + self.step, len(tokens))
        n = end - start
        if start >= self.anywhere_until:  # of few nobody knows whether they are read or decoded
            return n, self.kernels and n >= PROMPT_ROWS
        if start > chunk or not self.kernels:
            return n, False
        own = self._first_own(tokens, chunk, end)
        if own is None:
            return n, n == self.step >= PROMPT_ROWS
        before = (own - start) // PROMPT_ROWS * PROMPT_ROWS
        return (before, True) if before else (n, False)

    def joined(self, tokens: Seq[int], start: int, most: int) -> int:
        """Tokens of whole chunks that are read apart from there on, up to so many. Where that was
        tried they have in one pass the bits they have in several. 0: there are no two of them."""
        n = 0
        while start % self.step == 0 and n + self.step <= most:
            if self.next_pass(tokens, start + n) != (self.step, True):
                break
            n += self.step
        return n if n > self.step else 0

    def is_usual(self, tokens: Seq[int], start: int, n: int, *, apart: bool) -> bool:
        """Whether every reader of a text makes this pass: over whole chunks, or over what comes
        before an answer in one."""
        if n > self.step:
            return apart and self.joined(tokens, start, n) == n
        whole = start % self.step == 0 and n == self.step
        before = apart and start < self.anywhere_until
        return (whole or before) and self.next_pass(tokens, start) == (n, apart)

    def last(self, tokens: Seq[int], n: int) -> int:
        """The last joint of the first n tokens, whatever follows them."""
        chunk = n - n % self.step
        if n > self.anywhere_until:
            return max(self.anywhere_until, chunk)
        return n if self.agrees_until(tokens, chunk, n) == n else chunk

    def agrees_until(self, tokens: Seq[int], start: int, end: int) -> int:
        """How far passes that agree have the bits of a prompt's, from a joint on. In the middle of
        a chunk such passes follow in any case."""
        end = min(end, self.anywhere_until)
        for chunk in range(start + -start % self.step, end, self.step):
            if self._first_own(tokens, chunk, min(chunk + self.step, end)) is None:
                return chunk
        return max(start, end)

    def _first_own(self, tokens: Seq[int], start: int, end: int) -> int | None:
        return start if self.marks is None else self.marks.first_own(tokens, start, end)
