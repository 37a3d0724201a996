"""The decision trace: what a controller chose in each round, what it expected, and what came of it.

Knows choices and rounds, no text. One JSON object per round and line, for people and programs.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from parlay.decoding.round import Round

KEPT = 4096
# Seconds of a plain pass for a context and a number of sequences.
PlainSeconds = Callable[[int, int], float]
Sink = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Decision:
    """One round of one sequence. Gains are tokens per second over plain decoding's."""

    time_s: float  # since the first round
    seq: int
    position: int  # tokens generated before this round
    proposer: str
    window: int
    drafted: int
    accepted: int
    generated: int
    round_ms: float
    expected_gain: float | None
    actual_gain: float | None  # of the whole pass, which its sequences share
    reason: str  # why so, in the controller's words, or why it fell back

    @classmethod
    def of(cls, r: Round, time_s: float, gain: float | None) -> Decision:
        """What a round tells of it; `gain` is what came of it."""
        return cls(
            time_s=round(time_s, 6),
            seq=r.seq_id,
            position=r.position,
            proposer=r.proposer,
            window=r.window,
            drafted=r.n_drafted,
            accepted=r.n_accepted,
            generated=r.n_generated,
            round_ms=round(1e3 * r.timing.total_s, 3),
            expected_gain=None if r.expected_gain is None else round(r.expected_gain, 3),
            actual_gain=None if gain is None else round(gain, 3),
            reason=r.fallback.value if r.fallback else r.reason,
        )

    def as_dict(self) -> dict[str, Any]:
        """The public JSON form."""
        return asdict(self)


class Trace:
    """A listener that writes decisions down: the latest in memory, all to a sink."""

    def __init__(
        self,
        plain_seconds: PlainSeconds | None = None,
        sink: Sink | None = None,
        kept: int = KEPT,
    ) -> None:
        self.decisions: deque[Decision] = deque(maxlen=kept)
        self._plain_seconds = plain_seconds
        self._sink = sink
        self._clock = 0.0

    def observe(self, rounds: Sequence[Round]) -> None:
        gain = self._gain(rounds)
        for r in rounds:
            self._write(Decision.of(r, self._clock, gain))
        self._clock += rounds[0].timing.total_s

    def _gain(self, rounds: Sequence[Round]) -> float | None:
        """What the pass made per second, over what plain decoding makes."""
        seconds = rounds[0].timing.total_s
        if self._plain_seconds is None or seconds <= 0:
            return None
        n = len(rounds)
        plain = n / self._plain_seconds(max(r.n_context for r in rounds), n)
        return sum(r.n_generated for r in rounds) / seconds / plain

    def _write(self, decision: Decision) -> None:
        self.decisions.append(decision)
        if self._sink is not None:
            self._sink(json.dumps(decision.as_dict()) + "\n")
