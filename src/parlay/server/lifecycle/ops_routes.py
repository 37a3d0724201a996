"""Routes for those who run the server: health, metrics, slots, tokens.

Knows HTTP and the service; never shows a path or a prompt.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Literal

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, Response

from parlay.front.schema import SlotRequest
from parlay.server.lifecycle.service import Service
from parlay.web.security import given_key

router = APIRouter()
SlotAction = Literal["save", "restore", "erase"]


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


@router.get("/health", summary="Whether requests are taken")
@router.get("/v1/health", include_in_schema=False)
async def health(request: Request) -> JSONResponse:
    service = service_of(request)
    status = "draining" if service.draining else "ok" if service.engine.alive else "engine_died"
    engine = service.engine
    body = {
        "status": status,
        "drafter": service.drafter.state,
        "model": service.model_name,
        "mode": engine.mode,
        "exact_class": engine.exact_name if engine.mode == "exact" else None,
        "exact_cost_percent": engine.chosen.cost_percent,
    }
    return JSONResponse(body, status_code=200 if status == "ok" else 503)


@router.get("/metrics", summary="Prometheus metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    return Response(service_of(request).metrics.text(), media_type=CONTENT_TYPE_LATEST)


async def speculative_metrics(request: Request) -> dict[str, Any]:
    """Everything about speculation as one JSON object."""
    service = service_of(request)
    counts, observer = service.observer.counts, service.observer
    recent = observer.recent_counts()
    live = observer.baseline.live_speedup
    return {
        **counts.as_dict(),
        "draft_ms": round(observer.draft_s * 1e3, 3),
        "verify_ms": round(observer.verify_s * 1e3, 3),
        "overhead_ms": round(observer.overhead_s * 1e3, 3),
        "positions": {
            str(j): {"drafted": n, "accepted": counts.accepted_at[j]}
            for j, n in sorted(dict(counts.drafted_at).items())
        },
        "fallback_ms": {why.value: round(s * 1e3, 3) for why, s in dict(counts.fallback_s).items()},
        "fallback_share": round(observer.recent_sums().fallback_share, 4),
        "recent": recent.as_dict(),
        "speedup": None if live is None else round(live, 4),
        "baseline_ms": {
            str(n): round(s * 1e3, 3) for n, s in sorted(observer.baseline.pass_s.items())
        },
        "mode": service.engine.mode,
        "exact": _exact(service),
        "drafter": _drafter(service),
        "alerts": [alert.as_dict() for alert in service.alerts.active.values()],
        "queue": {"slots": len(service.engine.slots.all), "waiting": service.engine.n_waiting},
        "cache": service.cache.as_dict(),
        "memory_used_percent": service.memory.used_pct,
        "uptime_s": round(time.time() - service.started, 3),
    }


def _exact(service: Service) -> dict[str, Any]:
    engine = service.engine
    found = engine.exact
    return {
        "class": engine.exact_name,
        "classes": [other.name for other in engine.chosen.classes],
        "rows": sorted(found.widths),
        "concurrent": found.concurrent,
        "cost_percent": engine.chosen.cost_percent,
        "reason": None if engine.spoiled is None else engine.spoiled.value,
    }


def _drafter(service: Service) -> dict[str, Any]:
    care = service.drafter
    return {
        "state": care.state,
        "reason": None if care.reason is None else care.reason.value,
        "detail": care.detail,
        "proposers": service.engine.drafts.named,
    }


@router.get("/slots", summary="What each slot is doing")
async def slots(request: Request) -> list[dict[str, Any]]:
    engine = service_of(request).engine
    working = {seq.seq_id: seq for seq in engine.active}
    found = []
    for slot in engine.slots.all:
        seq = working.get(slot.seq_id)
        found.append(
            {
                "id": slot.seq_id,
                "n_ctx": engine.target.context_size,
                "is_processing": seq is not None,
                "n_cached": len(slot.tokens) if seq is None else seq.n_cached,
                "n_prompt": 0 if seq is None else len(seq.request.prompt),
                "n_generated": 0 if seq is None else seq.n_generated,
                "speculation": None if seq is None else seq.counts.as_dict(),
            }
        )
    return found


@router.post("/slots/{slot}", summary="Save, restore or erase what a slot holds")
async def slot_action(
    request: Request, slot: int, action: SlotAction, body: SlotRequest | None = None
) -> dict[str, Any]:
    service, name = service_of(request), "" if body is None else body.filename
    owner = service.owner_of(given_key(dict(request.scope["headers"])))
    if action == "save":
        return await service.slot_files.save(slot, name, owner)
    if action == "restore":
        return await service.slot_files.restore(slot, name, owner)
    return await service.slot_files.erase(slot, owner)


@router.get("/memory", summary="What is remembered of earlier answers, in numbers")
async def memory(request: Request) -> dict[str, Any]:
    told = service_of(request).answer_memory.told
    if told is None:
        return {"remembers": False, "owners": 0, "tokens": 0, "max_tokens": 0}
    return {
        "remembers": True,
        "owners": told.n_owners,
        "tokens": told.n_tokens,
        "max_tokens": told.max_tokens,
    }


@router.delete("/memory", summary="Forget what your requests left behind", status_code=204)
async def forget(request: Request) -> Response:
    """Who has a key forgets what came with it; without keys there is one owner."""
    service = service_of(request)
    key = given_key(dict(request.headers.raw))
    owner = service.keys.owner(key) if service.keys else None
    await asyncio.wrap_future(service.answer_memory.forget(owner))
    return Response(status_code=204)
