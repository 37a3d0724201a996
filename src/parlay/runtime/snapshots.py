"""Room for states: snapshots of the target's, by what windows pay here, and earlier prompts.

Knows files, settings and earlier prices; runs before anything is loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from parlay import store
from parlay.control.cost import CostTable
from parlay.errors import ParlayError
from parlay.llama import library
from parlay.llama.context import Context
from parlay.llama.undo import Rollback
from parlay.planning.limits import Wanted, engine_contexts, load_list, plan_here
from parlay.planning.needs import Load
from parlay.planning.plan import Plan
from parlay.planning.shape import read_shape
from parlay.planning.snapshots import with_snapshots
from parlay.runtime.engine_settings import EngineSettings
from parlay.runtime.loading import drafter_files

log = logging.getLogger("parlay.runtime")
_WINDOWS = "windows"
# Every pass, a plain one too, writes something for each of them: eight took 1 % of the time of a
# 27B's pass on an H200. Wider drafts are taken back by copies.
_MOST_SNAPSHOTS = 7


def choose_snapshots(settings: EngineSettings) -> int:
    """As many as the widest window that pays, if memory allows; 0 where nothing is drafted."""
    if settings.snapshots is not None and settings.draft and settings.window != 0:
        return settings.snapshots
    most = useful_snapshots(settings)
    if not most:
        return 0

    def plan(tried: Sequence[Load]) -> Plan:
        return plan_here(tried, budget_gb=settings.vram_budget_gb)

    chosen = with_snapshots(load_list(*wanted_files(settings)), most, plan)[0].context.n_snapshots
    log.info("%d snapshots of the recurrent state: so many tokens can be taken back", chosen)
    return chosen


def room_for_prompts(settings: EngineSettings) -> int:
    """Bytes of RAM in which earlier prompts are kept: as many as asked for, if they are free."""
    if not settings.context.prompt_cache_bytes:
        return 0
    made = plan_here(load_list(*wanted_files(settings)), budget_gb=settings.vram_budget_gb)
    return sum(item.n_bytes for item in made.items if item.what == "prompt cache")


def useful_snapshots(settings: EngineSettings) -> int:
    """As many as windows could use, whether or not there is room for them."""
    if not settings.draft or settings.window == 0 or not read_shape(settings.target).takes_back:
        return 0
    if settings.snapshots is not None:
        return settings.snapshots
    most = min(_MOST_SNAPSHOTS, settings.context.rows_at_once - 1)
    return min(_widest_that_pays(settings), most)


def remember_window(settings: EngineSettings, costs: CostTable, target: Context) -> None:
    """Keep for the next load which window pays; a busy machine is not believed."""
    bounded = target.rollback is Rollback.BOUNDED
    if bounded and costs.stable:
        best = costs.best_window(settings.widest)
        store.save(_WINDOWS, _key(settings), {"widest": settings.widest, "best": best})


def _widest_that_pays(settings: EngineSettings) -> int:
    if settings.window is not None:
        return settings.window
    known = store.read(_WINDOWS, _key(settings), lambda r: (int(r["widest"]), int(r["best"])))
    if known is None or settings.measure_again or known[0] != settings.widest:
        return settings.widest
    return min(settings.widest, known[1])


def _key(settings: EngineSettings) -> str:
    devices = [(d.name, d.description) for d in library.devices()]
    identity = store.file_identity(settings.target)
    return store.fingerprint(identity, library.version(), devices, settings.model)


def wanted_files(settings: EngineSettings) -> tuple[Wanted, list[Wanted]]:
    """Target and drafters as they will be loaded."""
    types = (settings.drafter_cache_type_k, settings.drafter_cache_type_v)
    ours, own = engine_contexts(settings.context, settings.widest, types)
    paths: Sequence[Path] = drafter_files(settings.draft)
    if settings.drafter_later:  # whoever loads it says what is wrong with it
        paths = [path for path in paths if _is_readable(path)]
    drafters = [Wanted(path, settings.drafter_model, own) for path in paths]
    return Wanted(settings.target, settings.model, ours), drafters


def _is_readable(path: Path) -> bool:
    try:
        read_shape(path)
    except ParlayError:
        return False
    return True
