"""Which prompts are read between two rounds, and in which passes.

Knows how much of each is left; knows nothing of models, caches or time.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from parlay.engine.sequence import Sequence

# Passes over prompts between two rounds, at most; a GPU may be handed as many in one call.
PROMPTS_A_ROUND = 4


@dataclass(frozen=True, slots=True)
class Prompts:
    """Shares a step among those who wait for their first token."""

    chunk: int  # tokens of one prompt in a pass if it is exact, and as a rule while others decode
    n_batch: int  # rows of a pass
    n_call: int  # rows that are handed over at once; more than those of a pass: several of them
    on_gpu: bool

    def passes(
        self, reading: Seq[Sequence], n_decoding: int, *, exact: bool, n_beside: int = 0
    ) -> list[list[Sequence]]:
        """The oldest goes on, and those that end in a pass come with it. Several passes where more
        wait for a first token than for the next one; on a GPU, where a round for few takes as long
        as one for all, also if each gives somebody the first. `n_beside`: tokens of one prompt in a
        pass while others decode, if they are more than a chunk."""
        if not reading:
            return []
        oldest, n_each = reading[0], self.n_batch
        if n_decoding or exact:
            n_each = self.chunk if exact else max(self.chunk, n_beside)
        most = max(1, PROMPTS_A_ROUND * self.chunk // n_each) if n_decoding else PROMPTS_A_ROUND
        waited_for = min(most, max(1, len(reading) // max(1, n_decoding)))
        n_most = waited_for
        if self.on_gpu:  # of several in a pass fewer passes: as many tokens come between two rounds
            n_most = max(1, PROMPTS_A_ROUND * self.chunk // (self.chunk if exact else self.n_batch))
        ending = self._ending([seq for seq in reading if seq.n_pending <= n_each], exact)
        if oldest.n_pending <= n_each:
            return self._joined(ending[:n_most], exact)
        found = [[oldest], *ending[: n_most - 1]]
        n_more = min(waited_for, -(-oldest.n_pending // n_each)) - len(found)
        return [*self._joined(found, exact), *[[oldest]] * n_more]

    def _ending(self, reading: Seq[Sequence], exact: bool) -> list[list[Sequence]]:
        """Prompts that end in a pass, by pass: exact ones alone, others with whom it has room for;
        with a part of another, llama.cpp would cut it in two."""
        passes: list[list[Sequence]] = []
        room = 0
        for seq in reading:
            if exact or seq.n_pending > room:
                passes.append([])
                room = self.n_batch
            passes[-1].append(seq)
            room -= seq.n_pending
        return passes

    def _joined(self, passes: list[list[Sequence]], exact: bool) -> list[list[Sequence]]:
        """Those over one prompt as one call: while a GPU computes one, the next is made ready."""
        if exact or self.n_call == self.n_batch:
            return passes
        alone = [each[0] for each in passes if len(each) == 1]
        shared = [each for each in passes if len(each) > 1]
        return [alone, *shared] if alone else shared
