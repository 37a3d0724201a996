"""The hard limit at load: refuse before anything is allocated.

Reads headers and what is free; the engine calls it, nothing here knows the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from parlay.errors import LoadError
from parlay.llama import library
from parlay.llama.adapters import check_adapters, read_pairs
from parlay.llama.cpu import repacked_types
from parlay.llama.model import has_room_for_a_copy
from parlay.llama.placement import check_overrides
from parlay.llama.settings import ContextSettings, ModelSettings
from parlay.planning.devices import GIB, MemoryPool, pools, ram
from parlay.planning.fit import Fit, fit
from parlay.planning.needs import Load
from parlay.planning.plan import Plan, make_plan
from parlay.planning.proposals import Proposal, propose
from parlay.planning.shape import Weight, read_shape

# The engine's own: its widest window unless a wider one is asked for, and the rows it probes.
_WIDEST = 16
_MIN_ROWS = 65  # one sequence alone may draft as many as 64 tokens


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file and the settings it is about to be loaded with."""

    path: Path
    model: ModelSettings
    context: ContextSettings
    head: bool = False  # only its NextN layers: the rest is loaded already

    def drafts_for(self, target: Path) -> Wanted:
        """A target that is named as its own drafter brings its NextN layers only."""
        same = self.path.exists() and target.exists() and self.path.samefile(target)
        return replace(self, head=same)


def engine_contexts(
    context: ContextSettings, window: int, drafter_types: tuple[str, str]
) -> tuple[ContextSettings, ContextSettings]:
    """The target's and the drafter's context as the engine makes them.

    The target's logits are read for a whole draft of every sequence, the drafter's for its end.
    """
    rows = (max(window, _WIDEST) + 1) * context.n_sequences
    k, v = drafter_types
    own = replace(
        context,
        n_outputs=context.n_sequences,
        cache_type_k=k,
        cache_type_v=v,
        same_bits=False,
        n_snapshots=0,
        prompt_cache_bytes=0,
    )
    n_outputs = max(rows, _MIN_ROWS) + context.n_sequences - 1
    return replace(context, n_outputs=n_outputs), own


def check_fits(
    target: Wanted, drafters: Sequence[Wanted] = (), *, budget_gb: float | None = None
) -> Plan:
    """Raise LoadError where the models would pass the budget, or what is free without one."""
    plan = plan_here(load_list(target, drafters), budget_gb=budget_gb)
    if plan.verdict != "fits":
        raise LoadError(refusal(plan))
    return plan


def load_list(target: Wanted, drafters: Sequence[Wanted] = (), n_features: int = 0) -> list[Load]:
    """Headers read, roles given. Drafters that read the target's layers say how many."""
    names = ["drafter", *(f"drafter {n}" for n in range(2, len(drafters) + 1))]
    drafts = [
        _load(name, one.drafts_for(target.path)) for name, one in zip(names, drafters, strict=False)
    ]
    n_reads = sum(load.shape.n_reads for load in drafts)
    return [_load("target", target, n_features or n_reads), *drafts]


def fit_here(
    loads: Sequence[Load],
    *,
    context: bool,
    layers: bool,
    budget_gb: float | None = None,
    available: Sequence[MemoryPool] | None = None,
) -> Fit:
    """The longest context and the most layers on the GPU that this machine holds, as asked for."""
    pools_now = usable_pools() if available is None else available
    found = fit(
        loads,
        lambda tried: plan_here(tried, budget_gb=budget_gb, available=pools_now),
        context=context,
        layers=layers,
    )
    if isinstance(found, Plan):
        raise LoadError(refusal(found))
    return found


def _load(role: str, wanted: Wanted, n_features: int = 0) -> Load:
    """As it will be loaded: weights that are copied into large pages are not mapped."""
    model, shape = wanted.model, read_shape(wanted.path, head=wanted.head)
    check_adapters(model.adapters, wanted.path)
    if model.all_overrides:
        check_overrides(model, shape.names, shape.name)
    if has_room_for_a_copy(model, wanted.path.stat().st_size):
        model = replace(model, mmap=False)
    pairs = [item for a in model.adapters for item in read_pairs(a.path).items()]
    adapters = tuple(Weight(name, pair.n_bytes) for name, pair in pairs)
    rank = max((pair.a.dims[1] for _, pair in pairs), default=0)
    context = wanted.context
    if role != "target" and shape.takes_back:
        context = replace(context, n_snapshots=1)  # see `Loader`: it comes back to a copy
    return Load(role, shape, model, context, n_features, adapters, rank)


def usable_pools() -> list[MemoryPool]:
    """What this build of llama.cpp can use: a GPU only if it was built for one."""
    if not library.has_gpu():
        return [ram()]
    found = pools()
    usable = [d for d in library.devices() if d.kind in ("gpu", "igpu")]
    if len(usable) == len(found) - 1:
        return found
    # Some are hidden from us, or no driver's library is installed: llama.cpp knows the rest.
    gpus = [MemoryPool(d.description, "gpu", d.total_bytes, d.free_bytes) for d in usable]
    return [*gpus, ram()]


def plan_here(
    loads: Sequence[Load],
    *,
    budget_gb: float | None = None,
    available: Sequence[MemoryPool] | None = None,
) -> Plan:
    """A plan for this machine, or for the pools given."""
    return make_plan(
        loads,
        usable_pools() if available is None else available,
        budget_gb=budget_gb,
        repacked=repacked_types(),
    )


def proposals_for(plan: Plan) -> list[Proposal]:
    """What would fit under the same limits."""
    budget = None if plan.budget is None else plan.budget / GIB
    return propose(plan, lambda loads: plan_here(loads, budget_gb=budget, available=plan.pools))


def _short_of(plan: Plan) -> tuple[int, int]:
    """What is needed and what there is, at the place that is too small."""
    if plan.on_gpu > plan.gpu_free:
        return plan.on_gpu, plan.gpu_free
    for i, pool in enumerate(plan.gpus):
        if plan.on_device(i) > pool.free:
            return plan.on_device(i), pool.free
    return plan.in_ram, plan.ram_free


def refusal(plan: Plan) -> str:
    """Why it does not fit, and what would, in one line."""
    found = proposals_for(plan)
    needed, free = _short_of(plan)
    limit = "the limit is" if plan.budget == free else "there is"
    advice = f"try {found[0].option}" if found else "use a smaller model"
    names = " and ".join(load.shape.name for load in plan.loads)
    verb = "needs" if len(plan.loads) == 1 else "need"
    return (
        f"{names} {verb} {needed / GIB:.2f} GB and {limit} {free / GIB:.2f} GB; {advice}"
        " (parlay plan shows the parts)"
    )
