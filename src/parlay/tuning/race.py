"""The race: every candidate's pairs against plain decoding, who may stop early, who wins.

Pure numbers: log-ratios by prompt, the bench's statistics, and caution for looking many times.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from statistics import NormalDist

from parlay.bench.statistics import MIN_EFFECT, Estimate, LogRatios, estimate

# Before this many prompts nobody is sent home: fewer say little about the next one.
MIN_PROMPTS = 4
# A candidate that takes memory must be faster than one that takes none by this much.
SIMPLER = 0.02
_TAIL = 0.025


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a candidate stands: its ratio, and bounds that hold however often one looks."""

    found: Estimate
    low: float
    high: float

    @property
    def pays(self) -> bool:
        """Faster than plain decoding, and by enough to be worth having."""
        return self.low > 1 and self.found.ratio >= 1 + MIN_EFFECT


@dataclass(slots=True)
class Race:
    """Candidates by name; `free` ones need no memory."""

    names: tuple[str, ...]
    free: frozenset[str] = frozenset()
    n_looks: int = 6  # at each candidate, about: the bounds allow for all of them
    pairs: dict[str, defaultdict[str, list[float]]] = field(default_factory=dict)
    stopped: set[str] = field(default_factory=set)
    _known: dict[str, Standing] = field(default_factory=dict)  # until the next pair comes

    def add(self, name: str, prompt: str, log_ratio: float) -> None:
        """One pair: the candidate's speed over plain decoding's."""
        self._known.pop(name, None)
        self.pairs.setdefault(name, defaultdict(list))[prompt].append(log_ratio)

    def standings(self) -> dict[str, Standing]:
        """Of everybody who has a pair."""
        for name in self.names:
            if name not in self._known and (found := self.judge(self.pairs.get(name, {}))):
                self._known[name] = found
        return {name: self._known[name] for name in self.names if name in self._known}

    def judge(self, ratios: LogRatios) -> Standing | None:
        """Ratios with bounds that are wide enough for every look at every candidate."""
        found = estimate(ratios)
        if found is None:
            return None
        width = widening(len(self.names) * self.n_looks)
        middle = math.log(found.ratio)
        low = middle - width * (middle - math.log(found.low))
        high = middle + width * (math.log(found.high) - middle)
        return Standing(found, math.exp(max(low, -20.0)), math.exp(min(high, 20.0)))

    def stop_losers(self) -> list[str]:
        """Send home who cannot win any more: the best they may be is less than what is sure."""
        standings = self.standings()
        bar = max([1.0, *(s.low for s in standings.values())])
        gone = [
            name
            for name, standing in standings.items()
            if name not in self.stopped
            and standing.found.n_prompts >= MIN_PROMPTS
            and standing.high < bar
        ]
        self.stopped.update(gone)
        return gone

    @property
    def racing(self) -> tuple[str, ...]:
        return tuple(name for name in self.names if name not in self.stopped)

    @property
    def winner(self) -> str | None:
        """The fastest that pays for sure; None: plain decoding. Memory must be worth it."""
        paying = {
            name: s.found.ratio
            for name, s in self.standings().items()
            if s.pays and name not in self.stopped
        }
        if not paying:
            return None
        best = max(paying, key=lambda name: paying[name])
        enough = paying[best] / (1 + SIMPLER)
        simple = [name for name in paying if name in self.free and paying[name] >= enough]
        return max(simple, key=lambda name: paying[name], default=best)

    @property
    def decided(self) -> bool:
        """Nobody is left who could still change the outcome."""
        winner = self.winner
        return not self.racing or (winner is not None and self.racing == (winner,))


def widening(n_looks: int) -> float:
    """How much wider an interval must be so that all of `n_looks` hold together (Bonferroni)."""
    return NormalDist().inv_cdf(1 - _TAIL / max(1, n_looks)) / NormalDist().inv_cdf(1 - _TAIL)
