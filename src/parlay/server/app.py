"""The application: routes, the gate before them, and one table for everything that goes wrong.

Knows FastAPI; starts and stops nothing itself.
"""

from __future__ import annotations

import logging

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response

from parlay.errors import ParlayError
from parlay.server import dashboard, failures, live_routes, openai_routes, ops_routes
from parlay.server.schema import ChatRequest, CompletionRequest
from parlay.server.security import Gate
from parlay.server.service import Service
from parlay.server.watching import Watching

log = logging.getLogger("parlay.server")
_FIELDS = sorted({*ChatRequest.model_fields, *CompletionRequest.model_fields})


def create_app(service: Service, version: str) -> FastAPI:
    """Everything under one roof."""
    app = FastAPI(
        title="Parlay",
        version=version,
        summary="Speculative decoding on llama.cpp that never loses the bet",
    )
    app.state.service = service
    app.state.watching = Watching(service)
    app.include_router(openai_routes.router)
    app.include_router(ops_routes.router)
    app.include_router(live_routes.router)
    app.include_router(dashboard.router)
    app.add_api_route(
        service.deployment.monitoring.metrics_endpoint, ops_routes.speculative_metrics
    )
    _add_failures(app)
    origins = service.deployment.server.cors_origins
    # The last one added is the first one reached: other sites' preflights carry no key.
    app.add_middleware(
        Gate,
        keys=lambda: service.keys,
        max_body=lambda: int(service.deployment.server.max_body_mb * 1e6),
    )
    if origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"]
        )
    return app


def _add_failures(app: FastAPI) -> None:
    app.add_exception_handler(failures.Failure, _fail)
    app.add_exception_handler(ParlayError, _fail)
    app.add_exception_handler(RequestValidationError, _fail)
    app.add_exception_handler(HTTPException, _fail)
    app.add_exception_handler(Exception, _fail)


async def _fail(request: Request, error: Exception) -> Response:
    failure = _failure(error)
    service: Service = request.app.state.service
    service.refused(_endpoint(request), failure)
    if failure.status >= 500 and not isinstance(error, failures.Failure):
        log.error("a request failed", exc_info=error)
    return JSONResponse(failure.body, failure.status, failure.headers)


def _failure(error: Exception) -> failures.Failure:
    if isinstance(error, RequestValidationError):
        return failures.of_validation(error.errors(), _FIELDS)
    if isinstance(error, HTTPException):
        return failures.Failure(error.status_code, str(error.detail), code="http")
    return failures.of(error)


def _endpoint(request: Request) -> str:
    """A metric's label: never what a client made up."""
    known = {"/v1/chat/completions": "chat", "/v1/completions": "completions"}
    return known.get(request.url.path, "other")
