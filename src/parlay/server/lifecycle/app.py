"""The application of a server with an engine of its own: its routes.

Knows the service; starts and stops nothing itself.
"""

from __future__ import annotations

from fastapi import FastAPI

from parlay.front import routes
from parlay.server.figures import live_routes
from parlay.server.figures.live_figures import LiveFigures
from parlay.server.lifecycle import ops_routes
from parlay.server.lifecycle.service import Service
from parlay.web import dashboard
from parlay.web.app import make_app

_SUMMARY = "Speculative decoding on llama.cpp that never loses the bet"
_ROUTERS = (
    routes.router,
    ops_routes.router,
    live_routes.router,
    dashboard.router,
)


def create_app(service: Service, version: str) -> FastAPI:
    """Everything under one roof."""
    app = make_app(service, version, _SUMMARY, _ROUTERS, frozenset(routes.READ_HERE))
    app.state.live = LiveFigures(service)
    app.add_api_route(
        service.deployment.monitoring.metrics_endpoint, ops_routes.speculative_metrics
    )
    return app
