"""What would fit instead: smaller context, smaller cache, fewer GPU layers, another drafter.

Every proposal is a plan that was made and fits; knows nothing of how plans are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from parlay.errors import BadRequest
from parlay.planning.needs import Load
from parlay.planning.plan import Plan

_STEP = 256  # cells are given out in these
_SMALL_CACHE = "q8_0"
MIN_CONTEXT = 512

Replan = Callable[[Sequence[Load]], Plan]


@dataclass(frozen=True, slots=True)
class Proposal:
    """One change that makes it fit."""

    change: str
    option: str
    plan: Plan


def propose(plan: Plan, replan: Replan) -> list[Proposal]:
    """Everything that alone would make the plan fit, the mildest first."""
    if plan.verdict == "fits":
        return []
    ways = (_smaller_cache, _smaller_context, _without_drafter, _smaller_drafter, _fewer_layers)
    return [proposal for way in ways for proposal in way(plan, replan)]


def _smaller_cache(plan: Plan, replan: Replan) -> Iterator[Proposal]:
    loads = [
        replace(
            load,
            context=replace(load.context, cache_type_k=_SMALL_CACHE, cache_type_v=_SMALL_CACHE),
        )
        for load in plan.loads
    ]
    found = _try(replan, loads)
    if found:
        yield Proposal(
            f"keep both caches in {_SMALL_CACHE}",
            f"--set runtime.llama.cache-type-k={_SMALL_CACHE}"
            f" --set runtime.llama.cache-type-v={_SMALL_CACHE}",
            found,
        )


def _smaller_context(plan: Plan, replan: Replan) -> Iterator[Proposal]:
    """The longest context that fits."""
    most = plan.loads[0].context.context_size // _STEP
    best = largest(
        MIN_CONTEXT // _STEP, most, lambda n: _try(replan, _with_context(plan.loads, n * _STEP))
    )
    if best:
        size = best[0] * _STEP
        yield Proposal(f"a context of {size} tokens", f"--context-size {size}", best[1])


def _with_context(loads: Sequence[Load], size: int) -> list[Load]:
    return [replace(load, context=replace(load.context, context_size=size)) for load in loads]


def _without_drafter(plan: Plan, replan: Replan) -> Iterator[Proposal]:
    if len(plan.loads) > 1 and (found := _try(replan, plan.loads[:1])):
        yield Proposal("draft without a model (it needs no memory)", "--draft suffix", found)


def _smaller_drafter(plan: Plan, replan: Replan) -> Iterator[Proposal]:
    if len(plan.loads) < 2:
        return
    alone = _try(replan, plan.loads[:1])
    if alone is None:
        return
    room = alone.gpu_free - alone.on_gpu if alone.has_gpu else alone.ram_free - alone.in_ram
    if room > 0:
        yield Proposal(
            f"a drafter that takes at most {room / (1 << 20):.0f} MiB in all", "--draft FILE", alone
        )


def _fewer_layers(plan: Plan, replan: Replan) -> Iterator[Proposal]:
    """As many of the target's layers on the GPU as it holds, the rest in RAM."""
    if not plan.has_gpu:
        return
    target, *others = plan.loads
    total = target.shape.n_layers + 1

    def with_layers(n: int) -> Plan | None:
        return _try(replan, [replace(target, model=replace(target.model, gpu_layers=n)), *others])

    best = largest(1, total - 1, with_layers)
    if best:
        yield Proposal(
            f"{best[0]} of {total} layers on the GPU", f"--gpu-layers {best[0]}", best[1]
        )


def largest(low: int, high: int, attempt: Callable[[int], Plan | None]) -> tuple[int, Plan] | None:
    """The largest number that fits, by bisection: whatever is larger needs more."""
    best: tuple[int, Plan] | None = None
    while low <= high:
        middle = (low + high) // 2
        found = attempt(middle)
        if found:
            best, low = (middle, found), middle + 1
        else:
            high = middle - 1
    return best


def _try(replan: Replan, loads: Sequence[Load]) -> Plan | None:
    try:
        plan = replan(loads)
    except BadRequest:  # such a cache type cannot hold this model's heads
        return None
    return plan if plan.verdict == "fits" else None
