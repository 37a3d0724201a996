"""Any server: keys and limits before the routes, one table for everything that fails.

Knows FastAPI and the service behind it by three attributes; starts and stops nothing.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response

from parlay.deployment import Deployment
from parlay.errors import ParlayError
from parlay.front import errors as failures
from parlay.front import unknown
from parlay.front.schema import ChatRequest, CompletionRequest
from parlay.web.admission import Admission
from parlay.web.browsers import browsers
from parlay.web.request_log import endpoint_of
from parlay.web.security import Gate, Keys
from parlay.web.supervisor_link import SupervisorLink

log = logging.getLogger("parlay.server")
_NAME = re.compile(r"([a-z_]+)(?:\.[a-z_0-9]+)*")
_TOLD_TO_PAGES = (unknown.HEADER, "X-Parlay-Pool", "X-Parlay-Speculative", "X-Parlay-Reason")
_FIELDS = sorted({*ChatRequest.model_fields, *CompletionRequest.model_fields})


class Behind(Protocol):
    """Whoever answers."""

    deployment: Deployment
    keys: Keys
    admission: Admission
    supervisor_link: SupervisorLink

    def full(self) -> failures.Failure | None:
        """Why nobody more is let in now."""

    def refused(self, endpoint: str, failure: failures.Failure) -> None:
        """Count and log a request that got no answer."""


def make_app(
    service: Behind,
    version: str,
    summary: str,
    routers: Sequence[APIRouter],
    read_once: frozenset[str] = frozenset(),
) -> FastAPI:
    """The routes behind keys and limits; they find the service as `app.state.service`. `read_once`:
    paths whose routes say themselves what is no JSON."""
    app = FastAPI(title="Parlay", version=version, summary=summary, docs_url=None, redoc_url=None)
    app.state.service = service

    for router in routers:
        app.include_router(router)
    for kind in (failures.Failure, ParlayError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, _fail)
    server = service.deployment.server
    origins = server.cors_origins
    # The last one added is the first one reached: other sites' preflights carry no key.
    app.add_middleware(
        Gate,
        keys=lambda: service.keys,
        max_body=lambda: int(service.deployment.server.max_body_mb * 1e6),
        browsers=lambda: browsers(
            server.host, service.deployment.server.allowed_hosts, server.cors_origins
        ),
        full=service.full,
        refused=lambda path, failure: service.refused(endpoint_of(path), failure),
        admission=service.admission,
        stall_s=lambda: service.deployment.server.stall_s,
        supervisor_link=service.supervisor_link,
        read_once=read_once,
    )
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=_TOLD_TO_PAGES,
        )
    return app


async def _fail(request: Request, error: Exception) -> Response:
    failure = _failure(error, request.url.path)
    service: Behind = request.app.state.service
    service.refused(endpoint_of(request.url.path), failure)
    if failure.status >= 500 and not isinstance(error, failures.Failure):
        log.error("a request failed", exc_info=error)
    headers = dict(getattr(error, "headers", None) or {})  # such as Allow, where a method is wrong
    body = failure.body_for(request.url.path)
    return JSONResponse(body, failure.status, {**headers, **failure.headers})


def _failure(error: Exception, path: str) -> failures.Failure:
    if isinstance(error, RequestValidationError):
        return _about(failures.of_validation(error.errors(), _FIELDS))
    if isinstance(error.__cause__, RecursionError):  # what reads bodies says only that it failed
        return failures.of(error.__cause__)
    if isinstance(error, HTTPException):
        return failures.Failure(error.status_code, str(error.detail), code="http")
    return _about(failures.of(error, path))


def _about(failure: failures.Failure) -> failures.Failure:
    """What we say of one field begins with its name, and whoever reads by machine is told it."""
    first = _NAME.match(failure.message)
    if failure.param is None and first is not None and first[1] in _FIELDS:
        return replace(failure, param=first[0])
    return failure
