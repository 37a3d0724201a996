"""Prometheus metrics. Their names are a public interface: see docs/reference/metrics.md.

Requests are counted here; what a backend counts is read off its figures when someone scrapes, so a
round pays nothing. Knows no engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_TOKEN_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 1, 5)
Figures = Mapping[str, Any]
Rows = Mapping[Any, float]  # by the values of the labels, a tuple


class RequestMetrics:
    """What is observed of requests, whoever answers them."""

    def __init__(self) -> None:
        own = self._registry = CollectorRegistry()
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

    def text(self, more: Iterable[Metric]) -> bytes:
        """The exposition format, with what else is to be told."""
        others = CollectorRegistry()
        others.register(_Given(more))
        return bytes(generate_latest(self._registry)) + bytes(generate_latest(others))


class _Given(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics

    def describe(self) -> Iterable[Metric]:
        return ()


def of_front(alerts: Mapping[str, int], process_bytes: int) -> Iterator[Metric]:
    """What is told while there is no backend, too."""
    yield _counter("alerts", "Alerts raised.", ["kind"], {(k,): n for k, n in alerts.items()})
    yield from _gauges(("process_resident_bytes", "Of the front's process.", process_bytes))


def of_backend(figures: Figures, n_waiting: int) -> Iterator[Metric]:
    """By the object of /metrics/speculative; `n_waiting` besides those who wait in the backend."""
    yield from _totals(figures)
    yield from _gauges(
        ("token_acceptance", "Accepted over drafted.", figures["token_acceptance"]),
        ("draft_share", "Accepted over generated.", figures["draft_share"]),
        ("acceptance_length", "Tokens a round.", figures["acceptance_length"]),
        ("slots", "Slots.", figures["queue"]["slots"]),
        ("queue_length", "Requests waiting for a slot.", figures["queue"]["waiting"] + n_waiting),
    )
    yield from _of_servers(figures) if "servers" in figures else _of_engine(figures)


def _totals(figures: Figures) -> Iterator[Metric]:
    histogram = figures.get("accepted_histogram") or {}
    speculated = figures.get("speculated_rounds", sum(histogram.values()))
    for name, text, value in (
        ("generated_tokens", "Tokens generated.", figures["generated"]),
        ("drafted_tokens", "Tokens drafted.", figures["drafted"]),
        ("accepted_tokens", "Draft tokens the target confirmed.", figures["accepted"]),
        ("rounds", "Rounds, plain ones included.", figures["rounds"]),
        ("speculated_rounds", "Rounds with a draft.", speculated),
    ):
        yield CounterMetricFamily(f"parlay_{name}", text, value=value or 0)


# -- an engine of ours -----------------------------------------------------------------------------


def _of_engine(figures: Figures) -> Iterator[Metric]:
    own = figures["gauges"]
    positions = figures["positions"]
    for name, text, value in (
        ("fully_accepted_rounds", "Drafts accepted whole.", own["fully_accepted_rounds"]),
        ("drafted_ahead_tokens", "Drafted while a pass ran.", figures.get("drafted_ahead")),
        ("ahead_hits", "Drafts that began with such tokens.", figures.get("hits")),
        ("hidden_draft_seconds", "Drafting that nobody waited for.", _s(figures.get("hidden_ms"))),
        ("compactions", "Caches compacted.", own["compactions"]),
    ):
        if value is not None:
            yield CounterMetricFamily(f"parlay_{name}", text, value=value)
    parts = {part: figures[f"{part}_ms"] / 1e3 for part in ("draft", "verify", "overhead")}
    seconds = {why: ms / 1e3 for why, ms in figures["fallback_ms"].items()}
    for name, text, label, values in (
        ("position_drafted", "Drafts that reached a position.", "position", _part(positions, 0)),
        ("position_accepted", "Accepted there.", "position", _part(positions, 1)),
        ("window_rounds", "Rounds by tokens drafted.", "window", figures["windows"]),
        ("proposer_rounds", "Drafts by proposer.", "proposer", figures["proposers"]),
        ("fallback_rounds", "Plain rounds by reason.", "reason", figures["fallbacks"]),
        ("fallback_seconds", "Sequence-seconds in them.", "reason", seconds),
        ("seconds", "Time of passes by part.", "part", parts),
    ):
        yield _counter(name, text, [label], {(str(key),): n for key, n in values.items()})
    in_reach = own["cache_tokens"] + own["cache_holes"]
    holes = own["cache_holes"] / in_reach if in_reach else 0.0
    capacity = max(1, own["cache_capacity"])
    yield from _gauges(
        ("speedup", "Recent speed over measured plain decoding.", figures["speedup"]),
        ("baseline_seconds", "A plain pass of one sequence.", own["baseline_s"]),
        ("sequence_acceptance", "Whole drafts accepted.", figures["sequence_acceptance"]),
        ("slots_busy", "Slots at work.", own["slots_busy"]),
        ("cache_tokens", "Tokens in the target's cache.", own["cache_tokens"]),
        ("cache_use_ratio", "Share of the cache.", own["cache_tokens"] / capacity),
        ("cache_fragmentation_ratio", "Holes over cells in reach.", holes),
        ("drafter_ready", "Whether the draft model is loaded.", _is_ready(figures)),
        ("memory_used_percent", "Of the machine.", figures["memory_used_percent"]),
        ("engine_resident_bytes", "Of the engine's process.", own["process_bytes"]),
    )


def _is_ready(figures: Figures) -> bool:
    return bool(figures["drafter"]["state"] == "ready")


def _part(positions: Mapping[str, Figures], which: int) -> dict[str, int]:
    name = ("drafted", "accepted")[which]
    return {at: found[name] for at, found in positions.items()}


def _s(ms: float | None) -> float | None:
    return None if ms is None else ms / 1e3


# -- remote servers --------------------------------------------------------------------------------


def _of_servers(figures: Figures) -> Iterator[Metric]:
    servers, labels = figures["servers"], ["pool", "server"]

    def rows(name: str) -> dict[tuple[str, ...], float]:
        return {(one["pool"], one["server"]): float(one[name]) for one in servers}

    up = {(one["pool"], one["server"]): float(one["state"] == "up") for one in servers}
    yield _counter(
        "retries", "Requests asked again of another server.", [], {(): figures["retries"]}
    )
    positions = {(at,): float(n) for at, n in figures["accepted_at"].items()}
    yield _counter("position_accepted", "Accepted at a position.", ["position"], positions)
    busy = sum(one["in_flight"] for one in servers)
    yield from _gauges(("slots_busy", "Requests the servers are at.", busy))
    yield _gauge("upstream_up", "Whether it is asked.", labels, up)
    yield _gauge("upstream_in_flight", "Requests there.", labels, rows("in_flight"))
    for name, text, key in (
        ("upstream_answers", "Answers it made.", "answers"),
        ("upstream_failures", "Requests it failed.", "failures"),
        ("upstream_ejections", "Times it was taken out.", "ejections"),
    ):
        yield _counter(name, text, labels, rows(key))
    telling = [one for one in servers if one["counters"] is not None]
    for name, key in (
        ("upstream_drafts", "drafts"),
        ("upstream_drafted_tokens", "drafted"),
        ("upstream_accepted_tokens", "accepted"),
    ):
        found = {(one["pool"], one["server"]): float(one["counters"][key]) for one in telling}
        yield _counter(name, "Its own counter, summed over its engines.", labels, found)
    yield from _of_routes(figures["routes"], figures["decisions"])


def _of_routes(routes: Iterable[Figures], decisions: Iterable[Figures]) -> Iterator[Metric]:
    seconds = {
        (route["route"], str(kind == "speculative").lower()): ms / 1e3
        for route in routes
        for kind, ms in route["ms_per_token"].items()
        if ms is not None
    }
    labels = ["route", "speculative"]
    yield _gauge("route_seconds_per_token", "Measured, both ways.", labels, seconds)
    made = {
        (one["route"], str(one["speculative"]).lower(), one["reason"]): float(one["requests"])
        for one in decisions
    }
    yield _counter("route_decisions", "Requests by pool.", [*labels, "reason"], made)


# -- families --------------------------------------------------------------------------------------


def _gauges(*rows: tuple[str, str, float | None]) -> Iterator[Metric]:
    """Name, text and value each; what nobody knows is left out."""
    for name, text, value in rows:
        if value is not None:
            yield GaugeMetricFamily(f"parlay_{name}", text, value=float(value))


def _counter(name: str, text: str, labels: list[str], rows: Rows) -> Metric:
    return _filled(CounterMetricFamily(f"parlay_{name}", text, labels=labels), rows)


def _gauge(name: str, text: str, labels: list[str], rows: Rows) -> Metric:
    return _filled(GaugeMetricFamily(f"parlay_{name}", text, labels=labels), rows)


def _filled(family: Any, rows: Rows) -> Metric:
    for key, value in sorted(rows.items()):
        family.add_metric(key, value)
    filled: Metric = family
    return filled
