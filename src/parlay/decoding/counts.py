"""Counts over rounds, and every figure derived from them.

Knows nothing of time per request: only rounds. The definitions are those of
docs/explanation/architecture.md.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from parlay.decoding.round import Fallback, Round


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


class Counts:
    """What a stretch of rounds did: one answer's, one server's."""

    def __init__(self) -> None:
        self.n_rounds = 0
        self.n_generated = 0
        self.n_drafted = 0
        self.n_accepted = 0
        self.n_speculated_rounds = 0  # rounds with a draft
        self.n_fully_accepted = 0
        self.histogram: Counter[int] = Counter()  # accepted length of each speculated round
        self.drafted_at: Counter[int] = Counter()  # by position, from 1
        self.accepted_at: Counter[int] = Counter()
        self.windows: Counter[int] = Counter()
        self.proposers: Counter[str] = Counter()
        self.drafted_by: Counter[str] = Counter()  # tokens, by proposer
        self.accepted_by: Counter[str] = Counter()
        self.fallbacks: Counter[Fallback] = Counter()
        self.fallback_s: defaultdict[Fallback, float] = defaultdict(float)
        self.generated_beside: Counter[int] = Counter()  # tokens, by sequences in their pass
        self.draft_s = 0.0
        self.verify_s = 0.0
        self.overhead_s = 0.0

    def observe(self, r: Round) -> None:
        """Count one round; every drafted token once."""
        self.n_rounds += 1
        self.n_generated += r.n_generated
        self.windows[r.n_drafted] += 1
        if r.timing.total_s and not r.reads_prompt:  # a prompt's token has no round of its own
            self._observe_time(r)
        if r.fallback is not None:
            self.fallbacks[r.fallback] += 1
            self.fallback_s[r.fallback] += r.timing.total_s
        if r.n_drafted:
            self._observe_draft(r)

    def _observe_time(self, r: Round) -> None:
        self.draft_s += r.timing.draft_s
        self.verify_s += r.timing.verify_s
        self.overhead_s += r.timing.overhead_s
        self.generated_beside[r.n_sequences] += r.n_generated

    def _observe_draft(self, r: Round) -> None:
        self.n_speculated_rounds += 1
        self.n_drafted += r.n_drafted
        self.n_accepted += r.n_accepted
        self.n_fully_accepted += r.n_accepted == r.n_drafted
        self.histogram[r.n_accepted] += 1
        self.proposers[r.proposer] += 1
        self.drafted_by[r.proposer] += r.n_drafted
        self.accepted_by[r.proposer] += r.n_accepted
        # A position was tried only if every one before it was accepted.
        for j in range(1, min(r.n_accepted + 1, r.n_drafted) + 1):
            self.drafted_at[j] += 1
        for j in range(1, r.n_accepted + 1):
            self.accepted_at[j] += 1

    @property
    def token_acceptance(self) -> float:
        return _ratio(self.n_accepted, self.n_drafted)

    @property
    def sequence_acceptance(self) -> float:
        return _ratio(self.n_fully_accepted, self.n_speculated_rounds)

    @property
    def draft_share(self) -> float:
        return _ratio(self.n_accepted, self.n_generated)

    @property
    def acceptance_length(self) -> float:
        return _ratio(self.n_generated, self.n_rounds)

    @property
    def acceptance_by_position(self) -> list[float]:
        """P(token j accepted | those before it were), over the rounds that tried position j."""
        depth = max(dict(self.drafted_at), default=0)
        return [_ratio(self.accepted_at[j], self.drafted_at[j]) for j in range(1, depth + 1)]

    def as_dict(self) -> dict[str, Any]:
        """The public JSON form (a promise: see docs/reference/interface.md).

        Of what grows by key a copy is read: another thread may be counting.
        """
        histogram, windows = dict(self.histogram), dict(self.windows)
        return {
            "generated": self.n_generated,
            "rounds": self.n_rounds,
            "drafted": self.n_drafted,
            "accepted": self.n_accepted,
            "token_acceptance": round(self.token_acceptance, 4),
            "sequence_acceptance": round(self.sequence_acceptance, 4),
            "draft_share": round(self.draft_share, 4),
            "acceptance_length": round(self.acceptance_length, 4),
            "accepted_histogram": {str(n): c for n, c in sorted(histogram.items())},
            "acceptance_by_position": [round(a, 4) for a in self.acceptance_by_position],
            "windows": {str(k): c for k, c in sorted(windows.items())},
            "proposers": dict(self.proposers),
            "fallbacks": {reason.value: c for reason, c in dict(self.fallbacks).items()},
            "draft_ms": round(self.draft_s * 1e3, 3),
            "verify_ms": round(self.verify_s * 1e3, 3),
            "overhead_ms": round(self.overhead_s * 1e3, 3),
        }
