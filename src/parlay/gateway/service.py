"""The gateway: pools, routes, numbers and the log; everything its HTTP routes need.

Without a word of HTTP to clients; runs on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Coroutine
from typing import Any

from parlay.deployment import Deployment
from parlay.front import errors as failures
from parlay.front.remote.pools import Pools
from parlay.front.remote.server import Server as Upstream
from parlay.front.remote.tally import Tally, together
from parlay.front.remote.timing import RouteTiming
from parlay.gateway.asking import Asked, Asking, Ratio
from parlay.gateway.figures import ObservedAnswer, PoolDecision
from parlay.gateway.live import GatewayLive, LiveAnswer
from parlay.gateway.metrics import GatewayCollector, GatewayView, RouteKey
from parlay.gateway.relay import Attempt, UpstreamFailed
from parlay.gateway.under_way import UnderWay
from parlay.web import admission
from parlay.web.alerts import Alerts
from parlay.web.request_log import RequestLog, timestamp
from parlay.web.request_metrics import RequestMetrics
from parlay.web.security import checked_keys
from parlay.web.supervisor_link import SupervisorLink

log = logging.getLogger("parlay.gateway")


class Gateway:
    """One server in front of other engines."""

    def __init__(self, deployment: Deployment) -> None:
        self._bound = deployment.server.host
        self.started = time.time()
        self.draining = False
        self.under_way = UnderWay()
        self.admission = admission.Admission()
        self.supervisor_link = SupervisorLink()  # nobody keeps anything, unless a supervisor does
        self.alerts = Alerts()
        self.ratio = Ratio()
        self.live = GatewayLive()
        self.pools = Pools(deployment)
        self.metrics = RequestMetrics(GatewayCollector(self.view))
        self.routes: dict[RouteKey, RouteTiming] = {}
        self.decisions: Counter[tuple[str, bool, str]] = Counter()
        self.n_retries = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._log: RequestLog | None = None
        self.apply(deployment)

    def apply(self, deployment: Deployment) -> None:
        """Take over everything that can change while requests run: all of it, or nothing."""
        keys = checked_keys(deployment, self._bound)
        log = RequestLog.of(deployment.monitoring)
        try:
            gone = self.pools.apply(deployment)  # reads the keys of new servers
        except BaseException:
            if log is not None:
                log.close()
            raise
        self.deployment = deployment
        self.keys = keys
        self.alerts.webhook = deployment.monitoring.alert_webhook
        self.asking = Asking(deployment, self.ratio)
        for up in gone:
            self.later(_close_when_idle(up))
        old, self._log = self._log, log
        if old is not None:
            old.close()

    @property
    def model_name(self) -> str:
        """What clients call the model: an alias, or what an engine names."""
        if self.deployment.model.alias:
            return self.deployment.model.alias[0]
        named = (up.model for up in self.pools.all if up.model)
        return next(named, "default").replace("\\", "/").rsplit("/", 1)[-1].removesuffix(".gguf")

    # -- requests -------------------------------------------------------------

    def full(self) -> failures.Failure | None:
        """Before a body is read: whether it could be sent on, or wait."""
        return self.pools.full(self.admission.n_coming)

    def open_asking(self) -> Asking:
        """Who understands requests, unless none are taken any more."""
        if self.draining:
            raise failures.unavailable("the server is shutting down", "shutting_down")
        return self.asking

    def route(self, asked: Asked) -> RouteTiming:
        """What is known of a route; whole answers are timed otherwise than streams."""
        key = (asked.route, asked.stream)
        if key not in self.routes:
            self.routes[key] = RouteTiming(self.deployment.gateway.explore_share)
        return self.routes[key]

    def choose(self, asked: Asked) -> PoolDecision:
        """Which kind of pool is asked, and why."""
        decision = self._decide(asked)
        self.decisions[asked.route, decision.speculative, decision.why] += 1
        return decision

    def _decide(self, asked: Asked) -> PoolDecision:
        if not self.pools.both():
            return PoolDecision(self.pools.all[0].pool.speculative, "only")
        if asked.wants is not None:
            return PoolDecision(asked.wants, "request", None if asked.wants else "request")
        if asked.plain is not None:
            return PoolDecision(False, "policy", asked.plain)
        for kind in (True, False):
            if not self.pools.able(kind):
                return PoolDecision(not kind, "unavailable")
        choice = self.route(asked).choose()
        unprofitable = choice.why == "faster" and not choice.speculate
        return PoolDecision(choice.speculate, choice.why, "unprofitable" if unprofitable else None)

    def attempt(self, up: Upstream, asked: Asked) -> Attempt:
        settings = self.deployment.gateway
        return Attempt(up, asked, settings.stall_timeout_s, int(settings.max_answer_mb * 1e6))

    def failed(self, up: Upstream, error: UpstreamFailed) -> None:
        """A server failed a request: remember it, and look at once whether it is still well."""
        if error.reason == "http_429":
            return  # busy is not broken
        up.failed(error.reason, gone=error.gone)
        self.later(self._look_at(up))

    async def _look_at(self, up: Upstream) -> None:
        if up.health.due(time.monotonic()):
            await up.check()
        self.pools.dispatch()

    # -- what was answered ----------------------------------------------------

    def finished(
        self,
        asked: Asked,
        observed: ObservedAnswer,
        up: Upstream,
        line: dict[str, Any],
        about: dict[str, Any],
    ) -> None:
        """Count and log one request, before its last byte is sent."""
        self._count(asked, observed, about)
        if about["status"] == 200:
            up.answered()
            up.told.add_answer(observed.generated, observed.said.speculation)
            self.ratio.observe(asked.n_chars, observed.said.n_prompt)
            if observed.said.finish_reason is not None:
                self.route(asked).observe(up.pool.speculative, *observed.decoding(asked.stream))
        line = {"time": timestamp(), **line, "server": up.url, **about}
        self._show(asked, observed, line)
        if self._log is not None:
            self._log.write(line)

    def _show(self, asked: Asked, observed: ObservedAnswer, line: dict[str, Any]) -> None:
        """To those who observed."""
        seconds, tokens = observed.decoding(asked.stream)
        plain = self.route(asked).sides[False].s_per_token
        answer = LiveAnswer(
            generated=observed.generated,
            told=observed.said.speculation,
            fallback=line["fallback"],
            seconds=seconds,
            plain_s=None if plain is None else plain * tokens,
        )
        seen = observed.n_pieces if asked.stream else 0
        self.live.token(asked.route, observed.generated - seen)
        self.live.take(asked.route, answer, line)

    def unanswered(self, asked: Asked, observed: ObservedAnswer, about: dict[str, Any]) -> None:
        """The same for a request no server began to answer."""
        self._count(asked, observed, about)
        if self._log is not None:
            line = {"endpoint": asked.endpoint, "policy": asked.route}
            self._log.write({"time": timestamp(), **line, **about})

    def _count(self, asked: Asked, observed: ObservedAnswer, about: dict[str, Any]) -> None:
        assert observed.ended is not None
        self.n_retries += about["retries"]
        self.metrics.requests.labels(asked.endpoint, about["status"]).inc()
        if about["status"] != failures.LEFT:  # how long an answer takes, it does not tell
            self.metrics.whole.observe(observed.ended - observed.arrived)
        self.metrics.queued.observe((observed.asked or observed.ended) - observed.arrived)
        if observed.first is not None and asked.stream:
            self.metrics.ttft.observe(observed.first - observed.arrived)

    def refused(self, endpoint: str, failure: failures.Failure) -> None:
        """Count and log a request that was none."""
        self.metrics.requests.labels(endpoint, failure.status).inc()
        if self._log is not None:
            about = {"endpoint": endpoint, "status": failure.status, "error": failure.code}
            self._log.write({"time": timestamp(), **about})

    def tally(self) -> Tally:
        """Speculation over all servers, by what their answers or pages tell."""
        return together((up.told, up.page) for up in self.pools.all)

    def view(self) -> GatewayView:
        return GatewayView(
            tally=self.tally(),
            upstreams=tuple(self.pools.all),
            routes=self.routes,
            decisions=self.decisions,
            n_waiting=self.pools.n_waiting,
            n_retries=self.n_retries,
            alerts=self.alerts.n_raised,
        )

    # -- life -------------------------------------------------------------------

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Something that must happen, but not before the answer goes on."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # the loop itself keeps no reference
        task.add_done_callback(self._tasks.discard)

    def cancel_all(self) -> None:
        """Nobody waits any longer: answers end where they are, and say why."""
        self.draining = True
        self.under_way.give_up()

    async def shut(self) -> None:
        """Finish what was put off, and hang up everywhere."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(up.close() for up in self.pools.all))

    def close(self) -> None:
        if self._log is not None:
            self._log.close()


async def _close_when_idle(up: Upstream) -> None:
    while up.in_flight:
        await asyncio.sleep(0.2)
    await up.close()
