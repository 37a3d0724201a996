"""Seconds of passes for any number of sequences, read off a measured cost table.

Between measured numbers of sequences and lengths of text prices lie on a line; a table that was
measured for one sequence only is used by rows alone, and says so.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache

from parlay.control.prices.cost import CostTable
from parlay.control.prices.curve import MAX_ROWS, Curve

# Without prompt passes in the table, reading is priced as verifying the same rows.
_CACHE = 1 << 16


class Prices:
    """What passes cost; made once, asked often."""

    def __init__(self, costs: CostTable) -> None:
        self.name = costs.name
        self.origin = costs.origin
        self._by_context: dict[int, dict[int, Curve]] = {}
        for (context, n), curve in costs.measured.items():
            self._by_context.setdefault(context, {})[n] = curve
        self._contexts = sorted(self._by_context)
        self._prompt = costs.prompt
        self._drafter = costs.drafter
        self.max_sequences = max(n for _, n in costs.measured)
        self.pass_s = lru_cache(_CACHE)(self._pass_s)

    @property
    def measured_together(self) -> bool:
        """Whether passes over several sequences were measured at all."""
        return self.max_sequences > 1

    @property
    def has_drafter(self) -> bool:
        return self._drafter is not None

    def _pass_s(self, n_sequences: int, rows: int, n_context: int, changed: bool = False) -> float:
        """One pass over so many sequences, `rows` each, after texts of that length.

        `changed`: the pass before it had another shape, which costs something on a GPU.
        """
        if rows * n_sequences > MAX_ROWS:  # it would be several
            most = max(1, MAX_ROWS // n_sequences)
            if n_sequences > MAX_ROWS:
                half = n_sequences // 2
                return self.pass_s(half, rows, n_context) + self.pass_s(
                    n_sequences - half, rows, n_context
                )
            return self.pass_s(n_sequences, most, n_context) + self.pass_s(
                n_sequences, rows - most, n_context
            )
        return self._over_contexts(n_sequences, rows, n_context, changed)

    def prompt_s(self, rows: int) -> float:
        """Reading so many tokens of one prompt."""
        seconds = 0.0
        while rows > 0:
            n = min(rows, MAX_ROWS)
            curve = self._prompt
            seconds += curve.steady[n] if curve else self.pass_s(1, n, 0)
            rows -= n
        return seconds

    def draft_s(self, window: int, n_sequences: int) -> float:
        """A draft model's part of a round for so many sequences."""
        if self._drafter is None or window == 0 or n_sequences == 0:
            return 0.0
        n = min(n_sequences, MAX_ROWS)
        return self._drafter.draft_s(window, n_missing=n, n_sequences=n)

    # -- between what was measured --------------------------------------------

    def _over_contexts(self, n_sequences: int, rows: int, n_context: int, changed: bool) -> float:
        contexts = self._contexts
        if len(contexts) == 1 or n_context <= contexts[0]:
            return self._over_sequences(contexts[0], n_sequences, rows, changed)
        i = min(bisect_left(contexts, n_context), len(contexts) - 1)
        low, high = contexts[i - 1], contexts[i]
        a = self._over_sequences(low, n_sequences, rows, changed)
        b = max(a, self._over_sequences(high, n_sequences, rows, changed))
        # Attention grows with the text: past the longest one the line goes on.
        return a + (b - a) * (n_context - low) / (high - low)

    def _over_sequences(self, context: int, n_sequences: int, rows: int, changed: bool) -> float:
        curves = self._by_context[context]
        known = sorted(curves)
        i = bisect_left(known, n_sequences)
        if i == len(known):  # more than were measured together: by rows alone
            return curves[known[-1]].of(n_sequences * rows, changed)
        high = known[i]
        if high == n_sequences or i == 0:
            return curves[high].of(n_sequences * rows, changed)
        low = known[i - 1]
        if high * rows > MAX_ROWS:
            return curves[low].of(n_sequences * rows, changed)
        a, b = curves[low].of(low * rows, changed), curves[high].of(high * rows, changed)
        return a + (b - a) * (n_sequences - low) / (high - low)
