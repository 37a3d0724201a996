"""What fits: the longest context, and the most of the target on the GPU, that memory holds.

Tries plans and keeps a margin by their known error; reads neither files nor devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from parlay.errors import BadRequest
from parlay.llama.settings import ALL
from parlay.planning.devices import GIB
from parlay.planning.needs import Load, Place
from parlay.planning.plan import Plan
from parlay.planning.proposals import Replan, largest


@dataclass(frozen=True, slots=True)
class Fit:
    """What was found, and the line that says so."""

    context_size: int
    gpu_layers: int
    n_cpu_moe: int
    plan: Plan
    line: str


_STEP = 256  # cells are given out in these
# What an answer with its question should find room for before anything leaves the GPU.
_USEFUL_CONTEXT = 4096
# By docs/reference/planning.md: totals are planned within 1 %, compute buffers within 5 %.
_TOTAL_ERROR, _COMPUTE_ERROR = 0.01, 0.05
# RAM is everybody's: other programs come and go, and a swapping machine is worse than a short
# context.
_RAM_LEFT = 0.1


def fit(loads: Sequence[Load], replan: Replan, *, context: bool, layers: bool) -> Fit | Plan:
    """The first load is the target. A plan that does not fit comes back where nothing does.

    `context`, `layers`: whether these are to be found; what is not stays as the loads have it.
    """
    most = longest(loads[0])
    least = min(most, _USEFUL_CONTEXT)
    if context:
        loads = _with_context(loads, least)
    placed = _place(loads, replan) if layers else list(loads)
    if placed is None or not _try(replan, placed):
        shorter = _with_context(placed or loads, min(most, _STEP)) if context else None
        if shorter is None or not _try(replan, shorter):
            return replan(placed or loads)
        placed, least = shorter, min(most, _STEP)
    if context:
        placed = _longest_context(placed, replan, least, most)
    return _found(placed, replan(placed), most)


def longest(target: Load) -> int:
    """The context the model was made for, stretched as it is asked to be."""
    scale = target.context.rope.scale or 1.0
    orig = target.context.rope.yarn_orig_context or target.shape.n_ctx_train
    return max(_STEP, int(orig * scale))


def _place(loads: Sequence[Load], replan: Replan) -> list[Load] | None:
    """All on the GPU; else experts in RAM, as few as will do; else as many layers as fit."""
    target, others = loads[0], loads[1:]

    def with_model(gpu_layers: int, n_cpu_moe: int) -> list[Load]:
        model = replace(target.model, gpu_layers=gpu_layers, n_cpu_moe=n_cpu_moe)
        return [replace(target, model=model), *others]

    asked = target.model.n_cpu_moe
    if _try(replan, with_model(ALL, asked)):
        return with_model(ALL, asked)
    if target.shape.n_experts and asked != ALL:
        n = target.shape.n_layers
        found = largest(0, n - asked, lambda kept: _try(replan, with_model(ALL, n - kept)))
        if found:
            return with_model(ALL, n - found[0])
        asked = ALL
    best = largest(0, target.shape.n_layers, lambda n: _try(replan, with_model(n, asked)))
    return with_model(best[0], asked) if best else None


def _longest_context(loads: Sequence[Load], replan: Replan, least: int, most: int) -> list[Load]:
    def with_steps(n: int) -> list[Load]:
        return _with_context(loads, min(n * _STEP, most))

    best = largest(-(-least // _STEP), -(-most // _STEP), lambda n: _try(replan, with_steps(n)))
    return with_steps(best[0]) if best else list(loads)


def _with_context(loads: Sequence[Load], size: int) -> list[Load]:
    return [replace(load, context=replace(load.context, context_size=size)) for load in loads]


def _try(replan: Replan, loads: Sequence[Load]) -> Plan | None:
    try:
        plan = replan(loads)
    except BadRequest:  # more cells than llama.cpp can count
        return None
    return plan if roomy(plan) else None


def roomy(plan: Plan) -> bool:
    """Whether it fits even where the plan errs."""
    if plan.verdict != "fits":
        return False
    for i, pool in enumerate(plan.gpus):
        if plan.on_device(i) and plan.on_device(i) + margin(plan, "gpu", i) > pool.free:
            return False
    if plan.on_gpu and plan.on_gpu + margin(plan, "gpu") > plan.gpu_free:
        return False
    left = sum(_RAM_LEFT * pool.total for pool in plan.pools if pool.kind == "ram")
    free = sum(pool.free for pool in plan.pools if pool.kind == "ram")
    needed = plan.in_ram + margin(plan, "ram")
    return needed <= plan.ram_free and needed + left <= free


def margin(plan: Plan, place: Place, device: int | None = None) -> int:
    """Bytes to leave free at a place: by how much plans were found to err."""
    own = [i for i in plan.items if i.place == place and device in (None, i.device)]
    compute = sum(item.n_bytes for item in own if item.what == "compute")
    return int(_TOTAL_ERROR * sum(item.n_bytes for item in own) + _COMPUTE_ERROR * compute)


def _found(loads: Sequence[Load], plan: Plan, most: int) -> Fit:
    target = loads[0]
    size, model = target.context.context_size, target.model
    return Fit(size, model.gpu_layers, model.n_cpu_moe, plan, _line(target, plan, most))


def _line(target: Load, plan: Plan, most: int) -> str:
    size, total = target.context.context_size, target.shape.n_layers + 1
    parts = [f"a context of {size} tokens" + (f" of {most}" if size < most else ", all it has")]
    n = target.model.gpu_layers
    if plan.has_gpu:
        on = total if n == ALL else min(n, total)
        parts.append(f"{'all' if on == total else on} of {total} layers on the GPU")
    moved = target.model.n_cpu_moe
    if moved and plan.has_gpu:
        parts.append(f"experts of {'all' if moved == ALL else moved} layers in RAM")
    needed, free = (plan.on_gpu, plan.gpu_free) if plan.on_gpu else (plan.in_ram, plan.ram_free)
    where = "of the GPU" if plan.on_gpu else "of RAM"
    return f"fit: {'; '.join(parts)}: {needed / GIB:.2f} of {free / GIB:.2f} GB {where}"
