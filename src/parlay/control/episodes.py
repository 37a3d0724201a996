"""Fallback episodes: unbroken runs of plain rounds of one sequence, with reason and duration.

Knows rounds only; what a fallback is for, and whether it was right, is not decided here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from parlay.decoding.round import Fallback, Round

KEPT = 256


@dataclass(frozen=True, slots=True)
class Episode:
    """One sequence decoded plainly for a while, always for the same reason."""

    seq_id: int
    reason: Fallback
    n_rounds: int
    seconds: float


class Episodes:
    """The latest episodes, and the totals of all of them by reason."""

    def __init__(self, kept: int = KEPT) -> None:
        self.ended: deque[Episode] = deque(maxlen=kept)
        self.rounds: dict[Fallback, int] = {}
        self.seconds: dict[Fallback, float] = {}
        self._open: dict[int, Episode] = {}

    @property
    def open(self) -> tuple[Episode, ...]:
        """Those that have not ended yet."""
        return tuple(self._open.values())

    def observe(self, rounds: Sequence[Round]) -> None:
        """The rounds of one pass."""
        for r in rounds:
            episode = self._open.get(r.seq_id)
            if episode is not None and episode.reason is not r.fallback:
                self.ended.append(self._open.pop(r.seq_id))
                episode = None
            if r.fallback is not None:
                self._extend(episode or Episode(r.seq_id, r.fallback, 0, 0.0), r)

    def _extend(self, episode: Episode, r: Round) -> None:
        seconds = r.timing.total_s
        self._open[r.seq_id] = replace(
            episode, n_rounds=episode.n_rounds + 1, seconds=episode.seconds + seconds
        )
        reason = episode.reason
        self.rounds[reason] = self.rounds.get(reason, 0) + 1
        self.seconds[reason] = self.seconds.get(reason, 0.0) + seconds
