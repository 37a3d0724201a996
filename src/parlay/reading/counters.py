"""Speculation counters of a Prometheus page, summed over its engines, and what was added to them.

Knows the metric names of vLLM, SGLang and llama.cpp; does no HTTP. What a page gained is one
answer's only while nobody else uses the server.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field

from parlay.reading.bounds import MAX_POSITIONS
from parlay.reading.speculation import Speculation

_LINE = re.compile(r"^([A-Za-z_:][\w:]*)(\{[^}]*\})?\s+([-+.\dEeNnaIif]+)(?:\s+\d+)?$")
_POSITION = re.compile(r'position="(\d{1,4})"')

_PREFIXES = ("vllm:spec_decode_", "llamacpp:spec_decode_")
_DRAFTS, _DRAFTED = "num_drafts", "num_draft_tokens"
_GAUGES = ("sglang:spec_accept_length", "sglang:spec_accept_rate")
_ACCEPTED, _ACCEPTED_AT = "num_accepted_tokens", "num_accepted_tokens_per_pos"


@dataclass(frozen=True, slots=True)
class Counters:
    """Values at one moment."""

    totals: dict[str, float] = field(default_factory=dict)
    accepted_at: dict[int, float] = field(default_factory=dict)
    accept_length: float | None = None  # SGLang tells only these, as gauges
    accept_rate: float | None = None

    @property
    def speculates(self) -> bool:
        """Whether the page tells of speculation: an engine without it leaves these out.

        SGLang has its gauge then too, at nothing; with speculation every step gives a token.
        """
        return _DRAFTED in self.totals or (self.accept_length or 0.0) >= 1

    @property
    def drafting(self) -> bool:
        """Whether drafts were made: llama.cpp counts them without speculation too, to nothing."""
        return self.drafted > 0 or (self.accept_length or 0.0) >= 1

    @property
    def drafts(self) -> int:
        return round(self.totals.get(_DRAFTS, 0.0))

    @property
    def drafted(self) -> int:
        return round(self.totals.get(_DRAFTED, 0.0))

    @property
    def accepted(self) -> int:
        return round(self.totals.get(_ACCEPTED, 0.0))


def parse(page: str) -> Counters:
    """Read a metrics page; whatever it does not understand is left out."""
    totals: defaultdict[str, float] = defaultdict(float)
    accepted_at: defaultdict[int, float] = defaultdict(float)
    gauges: defaultdict[str, list[float]] = defaultdict(list)
    for line in page.splitlines():
        found = _LINE.match(line.strip())
        if found is None:
            continue
        name, labels, value = found[1], found[2] or "", _number(found[3])
        if value is None:
            continue
        if name in _GAUGES:
            gauges[name].append(value)
        short = _short(name)
        position = _POSITION.search(labels)
        if short == _ACCEPTED_AT and position is not None:
            accepted_at[int(position[1])] += value
        elif short is not None:
            totals[short] += value
    length, rate = (_mean(gauges[name]) for name in _GAUGES)
    return Counters(dict(totals), dict(accepted_at), length, rate)


def _mean(values: list[float]) -> float | None:
    """Over the engines of a page; each of them has had as many requests as the next."""
    return sum(values) / len(values) if values else None


def _short(name: str) -> str | None:
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return name.removeprefix(prefix).removesuffix("_total")
    return None


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value == value and abs(value) < 1e15 else None


def added(before: Counters, after: Counters, n_tokens: int) -> Speculation | None:
    """What happened in between; None where the server counts nothing of the kind."""
    if _DRAFTED not in after.totals:
        return _from_gauges(after, n_tokens)

    def delta(name: str) -> int:
        return max(0, round(after.totals.get(name, 0.0) - before.totals.get(name, 0.0)))

    drafted, accepted, drafts = delta(_DRAFTED), delta(_ACCEPTED), delta(_DRAFTS)
    n_positions = min(MAX_POSITIONS, max(after.accepted_at, default=-1) + 1)
    accepted_at = [
        max(0, round(after.accepted_at.get(j, 0.0) - before.accepted_at.get(j, 0.0)))
        for j in range(n_positions)
    ]
    while accepted_at and accepted_at[-1] == 0:
        accepted_at.pop()
    # A position was tried where the one before it was accepted. Drafts may be shorter than that,
    # so these are upper bounds, as far as totals can tell.
    tried_at = [drafts, *accepted_at[:-1]] if accepted_at else []
    return Speculation(
        drafted=drafted,
        accepted=min(accepted, drafted),
        rounds=max(0, n_tokens - accepted),
        speculated_rounds=drafts,
        tried_at=tried_at,
        accepted_at=accepted_at,
    )


def _from_gauges(page: Counters, n_tokens: int) -> Speculation | None:
    """SGLang's gauges: tokens a step and accepted over drafted, over its recent steps."""
    if page.accept_length is None or page.accept_length < 1:
        return None
    rounds = max(1, round(n_tokens / page.accept_length))
    accepted = max(0, n_tokens - rounds)
    rate = page.accept_rate
    drafted = round(accepted / rate) if rate is not None and 0 < rate <= 1 else accepted
    return Speculation(drafted=max(drafted, accepted), accepted=accepted, rounds=rounds)
