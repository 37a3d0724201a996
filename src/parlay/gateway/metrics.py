"""The gateway's Prometheus metrics: the server's names where they mean the same, and its own.

Read off the gateway's counts when someone scrapes, so a request pays nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from parlay.front.remote.server import Server as Upstream
from parlay.front.remote.tally import Tally
from parlay.front.remote.timing import RouteTiming
from parlay.web.memory_pressure import process_bytes
from parlay.web.speculation_metrics import gauges, shares, totals

RouteKey = tuple[str, bool]  # a rule's name, and whether answers are streamed
Rows = Mapping[Any, float]  # by the values of the labels


@dataclass(frozen=True, slots=True)
class GatewayView:
    """The gateway at one moment."""

    tally: Tally
    upstreams: tuple[Upstream, ...]
    routes: Mapping[RouteKey, RouteTiming]
    decisions: Mapping[tuple[str, bool, str], int]
    n_waiting: int
    n_retries: int
    alerts: Mapping[str, int]


class GatewayCollector(Collector):
    """Reads the view when asked."""

    def __init__(self, view: Callable[[], GatewayView]) -> None:
        self._view = view

    def collect(self) -> Iterator[Metric]:
        view = self._view()
        yield from _totals(view)
        yield from _now(view)
        yield from _upstreams(view.upstreams)
        yield from _routes(view)

    def describe(self) -> Iterator[Metric]:
        """Nothing: the gateway is not there yet when this is registered."""
        return iter(())


def _totals(view: GatewayView) -> Iterator[Metric]:
    yield from totals(view.tally)
    yield _counter("retries", "Requests asked again of another server.", [], {(): view.n_retries})
    positions = {(str(j),): float(n) for j, n in sorted(view.tally.accepted_at.items())}
    yield _counter("position_accepted", "Accepted at a position.", ["position"], positions)
    kinds = {(kind,): float(n) for kind, n in view.alerts.items()}
    yield _counter("alerts", "Alerts raised.", ["kind"], kinds)


def _now(view: GatewayView) -> Iterator[Metric]:
    ups = view.upstreams
    yield from shares(view.tally)
    yield from gauges(
        ("slots", "Requests the servers take.", _places(ups)),
        ("slots_busy", "Requests they are at.", sum(up.in_flight for up in ups)),
        ("queue_length", "Requests waiting for a server.", view.n_waiting),
        ("process_resident_bytes", "Of this process.", process_bytes()),
    )


def _places(ups: Sequence[Upstream]) -> int:
    return sum(up.pool.max_concurrent for up in ups if up.health.takes)


def _upstreams(ups: Sequence[Upstream]) -> Iterator[Metric]:
    labels = ["pool", "server"]

    def rows(read: Callable[[Upstream], Any]) -> dict[tuple[str, ...], float]:
        return {(up.pool.name, up.url): float(read(up)) for up in ups}

    yield _gauge("upstream_up", "Whether it is asked.", labels, rows(lambda u: u.health.takes))
    yield _gauge("upstream_in_flight", "Requests there.", labels, rows(lambda u: u.in_flight))
    for name, text, read in (
        ("upstream_answers", "Answers it made.", lambda u: u.n_answered),
        ("upstream_failures", "Requests it failed.", lambda u: u.n_failed),
        ("upstream_ejections", "Times it was taken out.", lambda u: u.health.n_ejections),
    ):
        yield _counter(name, text, labels, rows(read))
    telling = [up for up in ups if up.page.last is not None]
    for name, attribute in (
        ("upstream_drafts", "drafts"),
        ("upstream_drafted_tokens", "drafted"),
        ("upstream_accepted_tokens", "accepted"),
    ):
        found = {(u.pool.name, u.url): float(getattr(u.page.last, attribute)) for u in telling}
        yield _counter(name, "Its own counter, summed over its engines.", labels, found)


def _routes(view: GatewayView) -> Iterator[Metric]:
    seconds = {
        (route, _word(streamed), _word(kind)): side.s_per_token
        for (route, streamed), found in view.routes.items()
        for kind, side in found.sides.items()
        if side.s_per_token is not None
    }
    labels = ["route", "stream", "speculative"]
    yield _gauge("route_seconds_per_token", "Measured, both ways.", labels, seconds)
    made = {(r, _word(kind), why): float(n) for (r, kind, why), n in view.decisions.items()}
    yield _counter("route_decisions", "Requests by pool.", ["route", "speculative", "reason"], made)


def _word(value: bool) -> str:
    return str(value).lower()


def _counter(name: str, text: str, labels: list[str], rows: Rows) -> Metric:
    return _filled(CounterMetricFamily(f"parlay_{name}", text, labels=labels), rows)


def _gauge(name: str, text: str, labels: list[str], rows: Rows) -> Metric:
    return _filled(GaugeMetricFamily(f"parlay_{name}", text, labels=labels), rows)


def _filled(family: Any, rows: Rows) -> Metric:
    for key, value in sorted(rows.items()):
        family.add_metric(key, value)
    filled: Metric = family
    return filled
