"""`parlay plan`: does it fit, and if not, what would.

Turns options into a plan and shows it; all arithmetic is in `parlay.planning`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from parlay.cli.machine_options import NO_MACHINE_OPTIONS, MachineOptions
from parlay.cli.option_groups import with_groups
from parlay.cli.options import Json, PlacingOptions
from parlay.engine.exact.class_calibration import exactness_told
from parlay.engine.start import FREE_PROPOSERS
from parlay.hub.resolving import resolve_drafter, resolve_model
from parlay.llama.settings import ContextSettings, ModelSettings
from parlay.planning import public
from parlay.planning.devices import GIB, pretend, ram
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
from parlay.planning.proposals import Proposal
from parlay.planning.snapshot_needs import with_snapshots
from parlay.planning.wide_passes import with_wide_passes
from parlay.routing import parse_draft

EXAMPLE = """
Example: parlay plan target.gguf --draft drafter.gguf --context-size 8192 --gpu-gb 24

Exit code 0: it fits; 1: it does not, and what would is shown.
"""
_BAR = 40
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
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class MemoryOptions(PlacingOptions):
    """What is to be loaded, and where."""

    draft: Annotated[
        list[str] | None,
        typer.Option(help="A drafter's GGUF file, or default, default-block; may be repeated."),
    ] = None
    slots: Annotated[int | None, typer.Option(min=1, max=256, help="Sequences at a time; 1.")] = (
        None
    )
    window: Annotated[int, typer.Option("--window", "-k", min=0)] = 16
    batch: Annotated[int, typer.Option(help="Most rows in one pass; 0: as suits the machine.")] = 0
    mmap: bool = True
    features: Annotated[
        int, typer.Option(min=0, help="Target layers a drafter reads; 0: as its file says.")
    ] = 0
    snapshots: Annotated[
        int | None, typer.Option(min=0, max=64, help="Of a recurrent state; else what fits.")
    ] = None
    prompt_cache_mb: Annotated[int, typer.Option(min=0, help="RAM for earlier prompts.")] = 1024
    vram_budget_gb: Annotated[float | None, typer.Option(min=0, help="Hard limit.")] = None
    gpu_gb: Annotated[
        float | None, typer.Option(min=0.1, help="Plan for a GPU of this size instead.")
    ] = None

    @property
    def drafters(self) -> list[Path]:
        names = parse_draft(",".join(self.draft or ()))
        return [resolve_drafter(name) for name in names if name not in FREE_PROPOSERS]

    def context(self, machine: MachineOptions) -> ContextSettings:
        return ContextSettings(
            4096 if self.size == "auto" else self.size,
            self.slots or 1,
            n_batch=self.batch or 512,
            cache_type_k=self.cache_type_k,
            cache_type_v=self.cache_type_v,
            n_ubatch=machine.ubatch or 0,
            n_snapshots=self.snapshots or 0,
            prompt_cache_bytes=self.prompt_cache_mb << 20,
            rope=machine.rope,
        )

    def model(self, machine: MachineOptions) -> ModelSettings:
        layers = -1 if self.layers == "auto" else self.layers
        return machine.placed(ModelSettings(layers, mmap=self.mmap))


_MEMORY = MemoryOptions()


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("plan", help="Does it fit: two models, two caches, buffers.", epilog=EXAMPLE)(
        with_groups(plan)
    )


def plan(
    target: Annotated[str, typer.Argument(help="GGUF file, or default.")] = "default",
    memory: MemoryOptions = _MEMORY,
    table: Annotated[bool, typer.Option(help="Public shapes at 12 to 48 GB, in Markdown.")] = False,
    json_output: Json = False,
    machine: MachineOptions = NO_MACHINE_OPTIONS,
) -> None:
    """Plan the memory of a target and its drafter."""
    if table:
        typer.echo(public.markdown_table(4096 if memory.size == "auto" else memory.size))
    else:
        _plan_memory(resolve_model(target), memory, machine, json_output)


def _plan_memory(
    target: Path, memory: MemoryOptions, machine: MachineOptions, json_output: bool
) -> None:
    available = usable_pools() if memory.gpu_gb is None else pretend(memory.gpu_gb, ram())
    plan_now = partial(plan_here, budget_gb=memory.vram_budget_gb, available=available)
    loads: Sequence[Load] = _loads(target, memory, machine, plan_now)
    if "auto" in (memory.size, memory.layers):
        found = fit_here(
            loads,
            context=memory.size == "auto",
            layers=memory.layers == "auto",
            budget_gb=memory.vram_budget_gb,
            available=available,
        )
        _say(found.line)
        loads = found.plan.loads
    if not memory.batch and not machine.ubatch:
        loads = with_wide_passes(loads, plan_now)
    made = plan_now(loads)
    told = exactness_told(target)
    if told is not None:
        _say(f"exactness: {told}")
    _print(made, proposals_for(made), json_output)
    if made.verdict != "fits":
        raise typer.Exit(1)


def _loads(
    target: Path,
    memory: MemoryOptions,
    machine: MachineOptions,
    plan_now: Callable[[Sequence[Load]], Plan],
) -> list[Load]:
    """Target and drafter, with as many snapshots as there is room for."""
    types = memory.drafter_cache_type_k, memory.drafter_cache_type_v
    context, own = engine_contexts(memory.context(machine), memory.window, types)
    model = memory.model(machine)
    placed = model.for_drafter(memory.drafter_gpu_layers)
    drafters = [Wanted(path, placed, own) for path in memory.drafters]
    loads = load_list(Wanted(target, model, context), drafters, memory.features)
    if memory.snapshots is not None:
        return loads
    return with_snapshots(loads, min(memory.window, context.rows_at_once - 1), plan_now)


def _say(line: str) -> None:
    typer.echo(line, err=True)


def _print(made: Plan, proposals: list[Proposal], json_output: bool) -> None:
    if json_output:
        record = made.as_dict()
        record["proposals"] = [{"change": p.change, "option": p.option} for p in proposals]
        typer.echo(json.dumps(record))
        return
    out = Console(highlight=False)
    out.print(items_table(made))
    for name, items, free in _sides(made):
        out.print(bar(name, items, free))
    out.print(verdict_line(made))
    for proposal in proposals:
        out.print(f"  would fit: {proposal.change}  [dim]{proposal.option}[/]")


def items_table(made: Plan) -> Table:
    """Every item, in MiB."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("model", "what", "where"):
        table.add_column(column)
    table.add_column("MiB", justify="right")
    for item in made.items:
        table.add_row(item.model, item.what, _where(made, item), f"{item.n_bytes / _MIB:,.1f}")
    return table


def _where(made: Plan, item: PlanItem) -> str:
    several = item.place == "gpu" and len(made.gpus) > 1
    return f"GPU {item.device}" if several else item.place.upper()


def _sides(made: Plan) -> list[tuple[str, list[PlanItem], int]]:
    """A name, what has to be held there and what is free there: RAM, and each GPU."""
    gpus = made.gpus
    sides = [("RAM", [item for item in made.items if item.place == "ram"], made.ram_free)]
    on_gpu = [item for item in made.items if item.place == "gpu"]
    if len(gpus) == 1:
        return [("GPU", on_gpu, made.gpu_free), *sides]
    each = [[item for item in on_gpu if item.device == i] for i in range(len(gpus))]
    named = [(f"GPU {i}", each[i], pool.free) for i, pool in enumerate(gpus)]
    return [*named, *sides]


def bar(name: str, items: list[PlanItem], free: int) -> Text:
    """What is needed against what is free, coloured by item."""
    text = Text(f"{name} ")
    needed = sum(item.n_bytes for item in items)
    scale = _BAR / max(needed, free, 1)
    for item in sorted(items, key=lambda item: -item.n_bytes):
        colour = _COLOURS.get(item.what, "")
        text.append("█" * round(item.n_bytes * scale), style=colour)
    text.append("·" * max(0, round((free - needed) * scale)), style="dim")
    text.append(f" {needed / GIB:.2f} of {free / GIB:.2f} GB")
    return text


def verdict_line(made: Plan) -> Text:
    """The answer."""
    colours = {"fits": "green", "spills": "yellow", "does not fit": "red"}
    limit = "" if made.budget is None else f" (limit {made.budget / GIB:g} GB)"
    text = Text(f"{made.verdict}{limit}", style=f"bold {colours[made.verdict]}")
    if not made.exact:
        text.append("  compute buffers estimated: an architecture not followed", style="dim")
    return text
