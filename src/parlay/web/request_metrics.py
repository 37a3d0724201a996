"""Prometheus metrics of requests, whoever answers them: counts, waits, gaps between tokens.

Knows no engine: a collector brings what is to be told beside them.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.registry import Collector

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_TOKEN_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 1, 5)


class RequestMetrics:
    """The registry, and what is observed of requests whoever answers them."""

    def __init__(self, collector: Collector) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(collector)
        own = self._registry
        self.requests = Counter(
            "parlay_requests", "Requests answered.", ("endpoint", "status"), registry=own
        )
        self.ttft = Histogram(
            "parlay_time_to_first_token_seconds",
            "From arrival to the first token, the queue included.",
            buckets=_SECONDS,
            registry=own,
        )
        self.between = Histogram(
            "parlay_inter_token_seconds",
            "Time between tokens as a client sees it; tokens of one round share their gap.",
            buckets=_TOKEN_SECONDS,
            registry=own,
        )
        self.whole = Histogram(
            "parlay_request_seconds", "From arrival to the end.", buckets=_SECONDS, registry=own
        )
        self.queued = Histogram(
            "parlay_queue_seconds", "Waiting for a slot.", buckets=_SECONDS, registry=own
        )

    def text(self) -> bytes:
        """The exposition format."""
        return bytes(generate_latest(self._registry))
