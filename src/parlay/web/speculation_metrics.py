"""Prometheus metrics of speculation that mean the same whoever counts: names, texts, values.

Knows what is counted, not who counts it. Names are a promise: docs/reference/metrics.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


class Counted(Protocol):
    """Sums over rounds; a share of nothing may be None."""

    n_generated: int
    n_drafted: int
    n_accepted: int
    n_rounds: int
    n_speculated_rounds: int

    @property
    def token_acceptance(self) -> float | None: ...

    @property
    def draft_share(self) -> float | None: ...

    @property
    def acceptance_length(self) -> float | None: ...


def totals(counts: Counted) -> Iterator[Metric]:
    """What only grows."""
    for name, text, value in (
        ("generated_tokens", "Tokens generated.", counts.n_generated),
        ("drafted_tokens", "Tokens drafted.", counts.n_drafted),
        ("accepted_tokens", "Draft tokens the target confirmed.", counts.n_accepted),
        ("rounds", "Rounds, plain ones included.", counts.n_rounds),
        ("speculated_rounds", "Rounds with a draft.", counts.n_speculated_rounds),
    ):
        yield CounterMetricFamily(f"parlay_{name}", text, value=value)


def shares(counts: Counted) -> Iterator[Metric]:
    """How well it went so far."""
    yield from gauges(
        ("token_acceptance", "Accepted over drafted.", counts.token_acceptance),
        ("draft_share", "Accepted over generated.", counts.draft_share),
        ("acceptance_length", "Tokens a round.", counts.acceptance_length),
    )


def gauges(*rows: tuple[str, str, float | None]) -> Iterator[Metric]:
    """Name, text and value each; what nobody knows is left out."""
    for name, text, value in rows:
        if value is not None:
            yield GaugeMetricFamily(f"parlay_{name}", text, value=float(value))
