"""Prometheus metrics. Their names are a public interface: see docs/reference/metrics.md.

Counters are read off the server's own counts when someone scrapes, so a round pays nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from parlay.server.figures.observer import Observer
from parlay.web.request_metrics import RequestMetrics
from parlay.web.speculation_metrics import gauges, shares, totals


@dataclass(frozen=True, slots=True)
class Gauges:
    """What the server is like at this moment."""

    slots: int
    slots_busy: int
    queue_length: int
    cache_tokens: int
    cache_capacity: int
    cache_holes: int
    drafter_ready: bool
    memory_used_pct: float
    process_bytes: int
    alerts: tuple[tuple[str, int], ...]
    compactions: int


class Metrics(RequestMetrics):
    """Those of a server with an engine of its own."""

    def __init__(self, observer: Observer, gauges: Callable[[], Gauges]) -> None:
        super().__init__(_Collector(observer, gauges))


class _Collector(Collector):
    """Reads the counts when asked."""

    def __init__(self, observer: Observer, gauges: Callable[[], Gauges]) -> None:
        self._observer = observer
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        yield from self._totals()
        yield from self._by_label()
        yield from self._now()

    def _totals(self) -> Iterator[Metric]:
        counts = self._observer.counts
        yield from totals(counts)
        for name, text, value in (
            ("fully_accepted_rounds", "Drafts accepted whole.", counts.n_fully_accepted),
            ("compactions", "Caches compacted.", self._gauges().compactions),
        ):
            yield CounterMetricFamily(f"parlay_{name}", text, value=value)

    def _by_label(self) -> Iterator[Metric]:
        counts, observer = self._observer.counts, self._observer
        parts = {
            "draft": observer.draft_s,
            "verify": observer.verify_s,
            "overhead": observer.overhead_s,
        }
        fallbacks = {reason.value: n for reason, n in dict(counts.fallbacks).items()}
        seconds = {reason.value: s for reason, s in dict(counts.fallback_s).items()}
        for name, text, label, values in (
            ("position_drafted", "Drafts that reached a position.", "position", counts.drafted_at),
            ("position_accepted", "Accepted there.", "position", counts.accepted_at),
            ("window_rounds", "Rounds by tokens drafted.", "window", counts.windows),
            ("proposer_rounds", "Drafts by proposer.", "proposer", counts.proposers),
            ("fallback_rounds", "Plain rounds by reason.", "reason", fallbacks),
            ("fallback_seconds", "Sequence-seconds in them.", "reason", seconds),
            ("seconds", "Time of passes by part.", "part", parts),
            ("alerts", "Alerts raised.", "kind", dict(self._gauges().alerts)),
        ):
            family = CounterMetricFamily(f"parlay_{name}", text, labels=[label])
            for key, value in sorted(dict(values).items()):  # a copy: the worker goes on counting
                family.add_metric([str(key)], value)
            yield family

    def _now(self) -> Iterator[Metric]:
        counts, baseline, now = self._observer.counts, self._observer.baseline, self._gauges()
        yield from shares(counts)
        yield from gauges(
            ("speedup", "Recent speed over measured plain decoding.", baseline.live_speedup),
            ("baseline_seconds", "A plain pass of one sequence.", baseline.of(1)),
            ("sequence_acceptance", "Whole drafts accepted.", counts.sequence_acceptance),
            ("slots", "Slots.", now.slots),
            ("slots_busy", "Slots at work.", now.slots_busy),
            ("queue_length", "Requests waiting for a slot.", now.queue_length),
            ("cache_tokens", "Tokens in the target's cache.", now.cache_tokens),
            ("cache_use_ratio", "Share of the cache.", now.cache_tokens / now.cache_capacity),
            ("cache_fragmentation_ratio", "Holes over cells in reach.", _holes(now)),
            ("drafter_ready", "Whether the draft model is loaded.", now.drafter_ready),
            ("memory_used_percent", "Of the machine.", now.memory_used_pct),
            ("process_resident_bytes", "Of this process.", now.process_bytes),
        )


def _holes(now: Gauges) -> float:
    reach = now.cache_tokens + now.cache_holes
    return now.cache_holes / reach if reach else 0.0
