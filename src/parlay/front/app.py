"""The application: every route behind the gate, one table for everything that fails.

Knows FastAPI and the service; starts and stops nothing.
"""

from __future__ import annotations

import logging
import re
from dataclasses import replace

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response

from parlay import __version__
from parlay.errors import ParlayError
from parlay.front import dashboard, errors, ops, routes, unknown
from parlay.front.errors import Failure
from parlay.front.gate import Gate
from parlay.front.schema import ChatRequest, CompletionRequest
from parlay.front.service import Service

log = logging.getLogger("parlay.server")
_SUMMARY = "Speculative decoding on llama.cpp that never loses the bet"
_NAME = re.compile(r"([a-z_]+)(?:\.[a-z_0-9]+)*")
_TOLD_TO_PAGES = (unknown.HEADER, "X-Parlay-Pool", "X-Parlay-Speculative", "X-Parlay-Reason")
_FIELDS = sorted({*ChatRequest.model_fields, *CompletionRequest.model_fields})


def make_app(service: Service) -> FastAPI:
    """Routes find the service as `app.state.service`."""
    app = FastAPI(
        title="Parlay", version=__version__, summary=_SUMMARY, docs_url=None, redoc_url=None
    )
    app.state.service = service
    for router in (routes.router, ops.router, dashboard.router):
        app.include_router(router)
    app.add_api_route(service.deployment.monitoring.metrics_endpoint, ops.speculative_metrics)
    for kind in (Failure, ParlayError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, _fail)
    # The last one added is the first one reached: other sites' preflights carry no key.
    app.add_middleware(
        Gate,
        deployment=lambda: service.deployment,
        keys=lambda: service.keys,
        coming=service.coming,
        full=service.full,
        refused=service.refused,
    )
    if origins := service.deployment.server.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=_TOLD_TO_PAGES,
        )
    return app


async def _fail(request: Request, error: Exception) -> Response:
    path = request.url.path
    failure = _failure(error, path)
    service: Service = request.app.state.service
    service.refused(path, failure)
    if failure.status >= 500 and not isinstance(error, Failure):
        log.error("a request failed", exc_info=error)
    headers = dict(getattr(error, "headers", None) or {})  # such as Allow, where a method is wrong
    return JSONResponse(failure.body_for(path), failure.status, {**headers, **failure.headers})


def _failure(error: Exception, path: str) -> Failure:
    if isinstance(error, RequestValidationError):
        return _about(errors.of_validation(error.errors(), _FIELDS))
    if isinstance(error.__cause__, RecursionError):  # what reads bodies says only that it failed
        return errors.of(error.__cause__)
    if isinstance(error, HTTPException):
        return Failure(error.status_code, str(error.detail), code="http")
    return _about(errors.of(error, path))


def _about(failure: Failure) -> Failure:
    """What we say of one field begins with its name, and whoever reads by machine is told it."""
    first = _NAME.match(failure.message)
    if failure.param is None and first is not None and first[1] in _FIELDS:
        return replace(failure, param=first[0])
    return failure
