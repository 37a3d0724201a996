"""The gateway as a process: first look, serve, reload.

Signals and draining are the host's business.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from starlette.types import ASGIApp

from parlay import __version__
from parlay.deployment import Deployment, DeploymentError
from parlay.gateway import live_routes
from parlay.gateway.in_flight import left_behind
from parlay.gateway.routes import router
from parlay.gateway.server_probing import ServerProbing
from parlay.gateway.service import Gateway
from parlay.web import dashboard as page
from parlay.web.app import make_app
from parlay.web.background import Work
from parlay.web.hosting import Host, kept_old

log = logging.getLogger("parlay.gateway")
_SUMMARY = "One address in front of several engines; traffic follows measured time"


class GatewayProcess(Host[Gateway]):
    """One deployment on other people's engines."""

    def open(self, deployment: Deployment) -> Gateway:
        if kept := left_behind(deployment):
            log.warning("set where the engines are started, without effect here: %s", kept)
        return Gateway(deployment)

    def app(self, service: Gateway) -> ASGIApp:
        routes = router(service.deployment.monitoring.metrics_endpoint)
        app = make_app(service, __version__, _SUMMARY, [routes, live_routes.router, page.router])
        app.state.live = live_routes.GatewayFigures(service)
        return app

    def beside(self, service: Gateway) -> Mapping[str, Work]:
        return {"the health check": ServerProbing(service).run}

    async def end(self, service: Gateway) -> None:
        await service.shut()

    async def reload(self, service: Gateway) -> bool:
        """Keys, limits, routes and pools change at once; a file that is wrong changes nothing."""
        try:
            new = self.read()
            if new.engine != "endpoints":
                raise DeploymentError("engine: local needs a restart")
            service.apply(new)
        except DeploymentError as error:
            return kept_old(service.alerts, error)
        service.alerts.set("reload", None)
        log.warning("the deployment was reloaded")
        return True
