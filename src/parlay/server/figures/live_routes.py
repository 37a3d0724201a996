"""Routes for those who watch: live figures, the last requests, what passes cost, a quick A/B.

Knows HTTP; every figure comes from elsewhere. The page and `parlay ps` use these routes.
"""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, Response

from parlay.front import streaming as sse
from parlay.front.errors import Failure
from parlay.server.figures.live_figures import LiveFigures
from parlay.server.figures.local_models import local_models
from parlay.server.figures.quick_ab import BenchOptions
from parlay.server.figures.recent_answers import Answered, decisions
from parlay.server.lifecycle.ops_routes import service_of
from parlay.web.memory_pressure import process_bytes

router = APIRouter(prefix="/live")
_COLUMNS = (
    "time", "request_id", "endpoint", "policy", "status", "finish_reason", "prompt_tokens",
    "generated", "tokens_per_second", "drafted", "token_acceptance", "acceptance_length",
    "speedup", "ttft_ms", "e2e_ms",
)  # fmt: skip


def live_of(request: Request) -> LiveFigures:
    found: LiveFigures = request.app.state.live
    return found


@router.get("", summary="Everything about this moment, as one object")
async def live(request: Request) -> dict[str, Any]:
    return await live_of(request).now()


@router.get("/stream", include_in_schema=False)  # it never ends: nothing for OpenAPI's readers
async def stream(request: Request) -> Response:
    figures = live_of(request)
    viewer = await figures.join()
    return sse.EventStream(viewer.frames(), on_end=lambda: figures.leave(viewer))


@router.get("/requests", summary="The last requests")
async def requests(request: Request) -> list[dict[str, Any]]:
    return [_row(answered) for answered in service_of(request).recent.answered]


@router.get("/requests/{request_id}", summary="One of them, round by round")
async def one_request(request: Request, request_id: str) -> dict[str, Any]:
    service = service_of(request)
    found = service.recent.find(request_id)
    if found is None:
        raise Failure(404, "no such request among the last ones", code="not_found")
    baseline = service.observer.baseline
    answers = None
    if found.rounds is not None:
        answers = [[d.as_dict() for d in decisions(made, baseline)] for made in found.rounds]
    return {**found.record, "model": found.key.model, "answers": answers}


@router.get("/costs", summary="What passes cost here, and when guessing pays")
async def costs(request: Request) -> dict[str, Any]:
    return live_of(request).costs()


@router.get("/models", summary="Models on this machine, and which fit; told at this machine only")
async def models(request: Request) -> list[dict[str, Any]]:
    service = service_of(request)
    serving = service.engine.settings.target
    return await asyncio.to_thread(local_models, service.deployment, serving, process_bytes())


@router.get("/bench", summary="The quick A/B: how far it is, what came of it")
async def bench(request: Request) -> dict[str, Any]:
    return live_of(request).bench.progress.as_dict()


@router.post("/bench", summary="Start a quick A/B", status_code=202)
async def start_bench(request: Request, options: BenchOptions) -> dict[str, Any]:
    found = live_of(request).bench
    found.start(options)
    return found.progress.as_dict()


@router.delete("/bench", summary="Cancel it", status_code=202)
async def cancel_bench(request: Request) -> dict[str, Any]:
    found = live_of(request).bench
    found.cancel()
    return found.progress.as_dict()


@router.get("/bench/report/{name}", include_in_schema=False)
async def bench_report(request: Request, name: str) -> HTMLResponse:
    """Open without a key, for a link sends none: only who saw the result knows the name."""
    page = await asyncio.to_thread(live_of(request).bench.report, name)
    if page is None:
        raise Failure(404, "no such report; only the last one is kept", code="not_found")
    return HTMLResponse(page, headers={"Cache-Control": "no-store"})


def _row(answered: Answered) -> dict[str, Any]:
    record = {name: answered.record.get(name) for name in _COLUMNS}
    return {**record, "model": answered.key.model, "traced": answered.rounds is not None}
