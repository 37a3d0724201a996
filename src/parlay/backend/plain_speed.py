"""What plain decoding costs here and now, so that a speed-up is against a measurement.

Knows passes and rounds, not requests. Measured once at start, then kept fresh by every pass in
which nothing was drafted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from parlay.decoding.counts import Counts
from parlay.decoding.round import WAITS, Round

_WEIGHT = 0.05  # of one pass in the running mean
_CLAMP = 3.0  # a pass this many times off counts as this much off: another job had the cores
_RECENT = 0.98  # how fast the live speed-up forgets, per pass


class PlainSpeed:
    """Seconds of a plain pass by the number of sequences in it."""

    def __init__(self) -> None:
        self.pass_s: dict[int, float] = {}
        self._n_seen: Counter[int] = Counter()
        self._plain_s = 0.0  # recent tokens at the plain rate
        self._spent_s = 0.0  # what they took

    def set(self, n_sequences: int, seconds: float) -> None:
        self.pass_s[n_sequences] = seconds

    def observe(self, rounds: Sequence[Round]) -> None:
        """One finished pass; one that read a prompt is no measure of decoding."""
        if rounds[0].reads_prompt:
            return
        n = len(rounds)
        spent = rounds[0].timing.total_s
        first = rounds[0]
        plain = all(r.n_rows == 1 for r in rounds) and first.n_pass_rows - first.n_padding == n
        if plain and first.reason != WAITS:
            self._refresh(n, spent)
        usual = self.of(n)
        if usual:
            n_tokens = sum(r.n_generated for r in rounds)
            self._plain_s = _RECENT * self._plain_s + usual * n_tokens / n
            self._spent_s = _RECENT * self._spent_s + spent

    def _refresh(self, n: int, seconds: float) -> None:
        """A real round outweighs the measurement at start, which knows only the model's part."""
        usual = self.pass_s.get(n, seconds) if self._n_seen[n] else seconds
        seen = min(max(seconds, usual / _CLAMP), usual * _CLAMP)
        self._n_seen[n] += 1
        self.pass_s[n] = usual + max(_WEIGHT, 1 / self._n_seen[n]) * (seen - usual)

    def of(self, n_sequences: int) -> float | None:
        """Seconds of a plain pass over so many sequences, or over the nearest known number."""
        known = min(self.pass_s, key=lambda n: abs(n - n_sequences), default=None)
        return None if known is None else self.pass_s[known]

    @property
    def live_speedup(self) -> float | None:
        """Recent tokens per second over what plain decoding would have made of the same passes."""
        return self._plain_s / self._spent_s if self._spent_s else None

    def speedup(self, counts: Counts) -> float | None:
        """The same for one answer."""
        spent = counts.draft_s + counts.verify_s + counts.overhead_s
        plain = self.plain_s(counts.generated_beside)
        return plain / spent if plain and spent else None

    def plain_s(self, generated_beside: Mapping[int, int]) -> float | None:
        """What so many tokens, by sequences beside them, would have taken plainly."""
        parts = [(self.of(n), tokens) for n, tokens in generated_beside.items()]
        if any(seconds is None for seconds, _ in parts):
            return None
        return sum((seconds or 0.0) * tokens for seconds, tokens in parts)
