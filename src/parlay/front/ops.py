"""Routes for those who run the server and those who watch: health, metrics, slots, memory, live.

Knows HTTP and the service; never shows a path or a prompt.
"""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, Response

from parlay.front import streaming as sse
from parlay.front.bodies import read
from parlay.front.errors import Failure
from parlay.front.gate import given_key
from parlay.front.schema import SlotRequest
from parlay.front.service import Service

router = APIRouter()
SlotAction = Literal["save", "restore", "erase"]


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


@router.get("/health", summary="Whether requests are taken")
@router.get("/v1/health", include_in_schema=False)
async def health(request: Request) -> JSONResponse:
    """While an engine is begun requests wait; whoever balances load may send them elsewhere."""
    service = service_of(request)
    state = await service.backend.state()
    status = "draining" if service.draining else "ok" if state.status == "ready" else state.status
    body: dict[str, Any] = {"status": status}
    if state.status == "ready":
        facts = service.backend.facts
        body |= {
            "model": service.model_names[0],
            "mode": facts.mode,
            "drafter": state.drafter,
            "exact_class": state.exact_class if facts.mode == "exact" else None,
            "exact_cost_percent": state.exact_cost_percent,
        }
    return JSONResponse(body, status_code=200 if status == "ok" else 503)


@router.get("/metrics", summary="Prometheus metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    return Response(await service_of(request).exposition(), media_type=CONTENT_TYPE_LATEST)


async def speculative_metrics(request: Request) -> dict[str, Any]:
    """Everything about speculation as one JSON object."""
    return await service_of(request).figures()


@router.get("/slots", summary="What each slot is doing")
async def slots(request: Request) -> list[dict[str, Any]]:
    return await service_of(request).backend.slots()


@router.post("/slots/{slot}", summary="Save, restore or erase what a slot holds")
async def slot_action(request: Request, slot: int, action: SlotAction) -> dict[str, Any]:
    service = service_of(request)
    name = (await read(request, SlotRequest)).filename if await request.body() else ""
    owner = service.owner_of(given_key(dict(request.scope["headers"])))
    if action == "save":
        return await service.backend.save_slot(slot, name, owner)
    if action == "restore":
        return await service.backend.restore_slot(slot, name, owner)
    return await service.backend.erase_slot(slot, owner)


@router.get("/memory", summary="What is remembered of earlier answers, in numbers")
async def memory(request: Request) -> dict[str, Any]:
    return await service_of(request).backend.memory()


@router.delete("/memory", summary="Forget what your requests left behind", status_code=204)
async def forget(request: Request) -> Response:
    """Who has a key forgets what came with it; without keys there is one owner."""
    service = service_of(request)
    key = given_key(dict(request.headers.raw))
    await service.backend.forget(service.keys.owner(key) if service.keys else None)
    return Response(status_code=204)


# -- for admins ------------------------------------------------------------------------------------


@router.get("/live", summary="Everything about this moment, as one object")
async def live(request: Request) -> dict[str, Any]:
    return await service_of(request).live.now()


@router.get("/live/stream", include_in_schema=False)  # it never ends: nothing for OpenAPI's readers
async def stream(request: Request) -> Response:
    figures = service_of(request).live
    viewer = await figures.join()
    return sse.EventStream(viewer.frames(), on_end=lambda: figures.leave(viewer))


@router.get("/live/requests", summary="The last requests")
async def requests(request: Request) -> list[dict[str, Any]]:
    return service_of(request).live.requests()


@router.get("/live/requests/{request_id}", summary="One of them, round by round")
async def one_request(request: Request, request_id: str) -> dict[str, Any]:
    service = service_of(request)
    found = service.live.request(request_id)
    if found is None:
        raise Failure(404, "no such request among the last ones", code="not_found")
    trace = await service.backend.trace(request_id)
    return {**found, "answers": None if trace is None else trace["answers"]}
