"""`parlay plan`: does it fit, and if not, what would; and what a workload could gain.

Turns options into a plan or a profile and shows it; all arithmetic is in `parlay.planning`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from parlay.cli.common import (
    ContextSize,
    Draft,
    GpuLayers,
    Json,
    Set,
    deployment_of,
    described,
    keys,
    loading,
    say,
    settings,
)
from parlay.deployment import Deployment
from parlay.engine.exact.choice import exactness_told
from parlay.engine.settings import LoadSettings
from parlay.engine.start import FREE_PROPOSERS
from parlay.errors import BadRequest
from parlay.hub.resolving import resolve_model
from parlay.parlay import known_draft, named_draft
from parlay.planning.devices import GIB, MemoryPool, pretend, ram
from parlay.planning.limits import (
    Wanted,
    engine_contexts,
    fit_here,
    load_list,
    plan_here,
    proposals_for,
    usable_pools,
)
from parlay.planning.needs import Load, PlanItem
from parlay.planning.plan import Plan
from parlay.planning.room import with_snapshots, with_wide_passes
from parlay.planning.workload import profile, read_logs, rules

EXAMPLE = """
Example: parlay plan target.gguf --draft drafter.gguf --context-size 8192 --gpu-gb 24

Example: parlay plan mixture.gguf --gpu-gb 24 --set runtime.llama.n-cpu-moe=20

Example: parlay plan --log requests.jsonl

Exit code 0: it fits; 1: it does not, and what would is shown. --log reads Parlay's request log, or
OpenAI's JSON lines with `usage` and times; exit code 1: nothing would gain.
"""
_BAR = 40
_WINDOW = 16
_COLOURS = {
    "weights": "blue",
    "repacked weights": "cyan",
    "cache": "green",
    "state": "green",
    "snapshots": "green",
    "prompt cache": "bright_black",
    "compute": "yellow",
    "recordings": "yellow",
    "logits": "magenta",
    "features": "magenta",
    "driver": "white",
}


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("plan", help=described("Does it fit, and would it pay.", EXAMPLE))(plan)


def plan(
    target: Annotated[str, typer.Argument(help="GGUF file or name.")] = "default",
    draft: Draft = None,
    context_size: ContextSize = None,
    slots: Annotated[int | None, typer.Option(min=1, max=256, help="Answers at once; 1.")] = None,
    gpu_layers: GpuLayers = None,
    vram_budget_gb: Annotated[float | None, typer.Option(min=0, help="Hard limit.")] = None,
    gpu_gb: Annotated[
        float | None, typer.Option(min=0.1, help="Plan for a GPU of this size instead.")
    ] = None,
    log: Annotated[
        list[Path] | None, typer.Option(help="What these requests could gain, by route.")
    ] = None,
    speedup: Annotated[
        float | None, typer.Option(min=0.01, help="With --log: of decoding, where none is told.")
    ] = None,
    set_key: Set = None,
    json_output: Json = False,
) -> None:
    """Plan the memory of a target and its drafters."""
    if log:
        _profile(log, speedup, json_output)
        return
    given = keys(
        model=target,
        draft=draft,
        context_size=context_size,
        gpu_layers=gpu_layers,
        slots=slots,
        vram_budget_gb=vram_budget_gb,
    )
    deployment = deployment_of(given | settings(set_key))
    available = usable_pools() if gpu_gb is None else pretend(gpu_gb, ram())
    made = plan_of(deployment, available, drafts=draft is not None)
    told = exactness_told(resolve_model(deployment.model.target))
    if told is not None:
        say(f"exactness: {told}")
    _show(made, json_output)
    if made.verdict != "fits":
        raise typer.Exit(1)


def plan_of(deployment: Deployment, available: Sequence[MemoryPool], *, drafts: bool) -> Plan:
    """The memory of a deployment. `drafts`: with the drafters it names, found ones included."""
    given = LoadSettings(**loading(deployment))
    target, budget = resolve_model(deployment.model.target), deployment.runtime.vram_budget_gb
    plan_now = partial(plan_here, budget_gb=budget, available=available)
    named = deployment.model.drafter
    found = known_draft(target) if named == "auto" else named_draft(named)
    files = [Path(name) for name in found if name not in FREE_PROPOSERS] if drafts else []
    llama = deployment.runtime.llama
    types = llama.drafter_cache_type_k, llama.drafter_cache_type_v
    context, own = engine_contexts(given.context, _WINDOW, types)
    placed = given.model.for_drafter(llama.drafter_gpu_layers)
    wanted = [Wanted(path, placed, own) for path in files]
    # As many snapshots of a recurrent state as there is room for.
    loads: Sequence[Load] = with_snapshots(
        load_list(Wanted(target, given.model, context), wanted),
        min(_WINDOW, context.rows_at_once - 1),
        plan_now,
    )
    if "auto" in (given.context_size, given.gpu_layers):
        fitted = fit_here(
            loads,
            context=given.context_size == "auto",
            layers=given.gpu_layers == "auto",
            budget_gb=budget,
            available=available,
        )
        say(fitted.line)
        loads = fitted.plan.loads
    if not llama.batch and not llama.ubatch:
        loads = with_wide_passes(loads, plan_now)
    return plan_now(loads)


def _show(made: Plan, json_output: bool) -> None:
    proposals = proposals_for(made)
    if json_output:
        record = made.as_dict()
        record["proposals"] = [{"change": p.change, "option": p.option} for p in proposals]
        typer.echo(json.dumps(record))
        return
    out = Console(highlight=False)
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("model", "what", "where"):
        table.add_column(column)
    table.add_column("MiB", justify="right")
    for item in made.items:
        several = item.place == "gpu" and len(made.gpus) > 1
        where = f"GPU {item.device}" if several else item.place.upper()
        table.add_row(item.model, item.what, where, f"{item.n_bytes / (1 << 20):,.1f}")
    out.print(table)
    for i, pool in enumerate(made.gpus):
        name = f"GPU {i}" if len(made.gpus) > 1 else "GPU"
        there = [item for item in made.items if item.place == "gpu" and item.device == i]
        out.print(_bar(name, there, made.gpu_free if len(made.gpus) == 1 else pool.free))
    out.print(_bar("RAM", [item for item in made.items if item.place == "ram"], made.ram_free))
    colours = {"fits": "green", "spills": "yellow", "does not fit": "red"}
    limit = "" if made.budget is None else f" (limit {made.budget / GIB:g} GB)"
    text = Text(f"{made.verdict}{limit}", style=f"bold {colours[made.verdict]}")
    if not made.exact:
        text.append("  compute buffers estimated: an architecture not followed", style="dim")
    out.print(text)
    for proposal in proposals:
        out.print(f"  would fit: {proposal.change}  [dim]{proposal.option}[/]")


def _bar(name: str, items: list[PlanItem], free: int) -> Text:
    """What is needed against what is free, coloured by item."""
    text = Text(f"{name} ")
    needed = sum(item.n_bytes for item in items)
    scale = _BAR / max(needed, free, 1)
    for item in sorted(items, key=lambda item: -item.n_bytes):
        text.append("█" * round(item.n_bytes * scale), style=_COLOURS.get(item.what, ""))
    text.append("·" * max(0, round((free - needed) * scale)), style="dim")
    text.append(f" {needed / GIB:.2f} of {free / GIB:.2f} GB")
    return text


# -- a workload -------------------------------------------------------------------------------


def _profile(logs: list[Path], speedup: float | None, json_output: bool) -> None:
    """What a workload spends its time on, and the rules that follow."""
    log = read_logs(logs)
    if not log.requests:
        raise BadRequest(
            f"no request in {log.n_skipped} lines; name Parlay's request log"
            " (monitoring.request_log), or JSON lines with OpenAI's usage"
        )
    routes = profile(log.requests, speedup=speedup)
    entries = rules(routes, log.requests)
    if json_output:
        told = {
            "requests": len(log.requests),
            "skipped_lines": log.n_skipped,
            "routes": [route.as_dict() for route in routes],
            "rules": entries,
        }
        typer.echo(json.dumps(told))
    else:
        out = Console(highlight=False)
        out.print(f"{len(log.requests)} requests, {log.n_skipped} other lines")
        table = Table(box=None, padding=(0, 2, 0, 0))
        for column in ("route", "n", "prompt", "answer", "decode", "accepted", "gain", "advice"):
            table.add_column(column)
        for route in routes:
            shares = (route.decode_share, route.token_acceptance)
            table.add_row(
                route.name,
                *map(str, (route.n_requests, route.n_prompt, route.n_answer)),
                *("?" if share is None else f"{share:.0%}" for share in shares),
                "?" if route.gain is None else f"{route.gain:.2f}x",
                f"{route.advice}: {route.why}",
            )
        out.print(table)
        if entries:
            out.print("\nFor the deployment file:", style="bold")
            typer.echo(yaml.safe_dump({"routes": entries}, sort_keys=False))
    if not any(route.advice == "speculate" for route in routes):
        raise typer.Exit(1)
