"""Routes for those who observed a gateway: live figures and the last requests.

What only a local engine has (a price of passes, the quick A/B, traces of rounds) says so.
"""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from parlay.front import streaming as sse
from parlay.front.errors import Failure
from parlay.gateway.live import TICK_S
from parlay.gateway.routes import gateway_of
from parlay.gateway.service import Gateway
from parlay.web.viewers import Viewer, Viewers

router = APIRouter(prefix="/live")
_NO_ENGINE = "a gateway has no engine of its own; open the page of an engine behind it"


class GatewayFigures:
    """One gateway being watched."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._viewers = Viewers(self._frame, TICK_S)

    def now(self, n_viewers: int = 0) -> dict[str, Any]:
        gateway = self._gateway
        about = {
            "uptime_s": round(time.time() - gateway.started, 1),
            "model": gateway.model_name,
            "alerts": [alert.as_dict() for alert in gateway.alerts.active.values()],
        }
        size = gateway.deployment.server.queue_size
        return gateway.live.snapshot(gateway.pools, about, size, n_viewers)

    def join(self) -> Viewer:
        history = self._gateway.live.history(self._gateway.model_name)
        return self._viewers.join(("history", sse.event("history", history)))

    def leave(self, viewer: Viewer) -> None:
        self._viewers.leave(viewer)

    async def _frame(self, n_viewers: int) -> bytes | None:
        if self._gateway.draining:
            return None  # or the streams would hold the server's end up
        return sse.event("snapshot", self.now(n_viewers))


def live_of(request: Request) -> GatewayFigures:
    found: GatewayFigures = request.app.state.live
    return found


@router.get("", summary="Everything about this moment, as one object")
async def live(request: Request) -> dict[str, Any]:
    return live_of(request).now()


@router.get("/stream", include_in_schema=False)  # it never ends: nothing for OpenAPI's readers
async def stream(request: Request) -> Response:
    figures = live_of(request)
    viewer = figures.join()
    return sse.EventStream(viewer.frames(), on_end=lambda: figures.leave(viewer))


@router.get("/requests", summary="The last requests")
async def requests(request: Request) -> list[dict[str, Any]]:
    gateway = gateway_of(request)
    model = gateway.model_name
    return [{**row, "model": model, "traced": False} for row in reversed(gateway.live.requests)]


@router.get("/requests/{request_id}", summary="One of them")
async def one_request(request: Request, request_id: str) -> dict[str, Any]:
    gateway = gateway_of(request)
    for row in reversed(gateway.live.requests):
        if row["request_id"] == request_id:
            return {**row, "model": gateway.model_name, "answers": None}
    raise Failure(404, "no such request among the last ones", code="not_found")


@router.get("/models", summary="None: models are where the engines are")
async def models() -> list[dict[str, Any]]:
    return []


@router.get("/costs", summary="Refused", status_code=501)
@router.get("/bench", summary="Refused", status_code=501)
@router.post("/bench", summary="Refused", status_code=501)
@router.delete("/bench", summary="Refused", status_code=501)
async def not_here() -> None:
    raise Failure(501, _NO_ENGINE, code="not_supported")
