"""What memory is left for: snapshots of the target's state, wide passes, and earlier prompts.

Knows files and settings; runs before anything is loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from parlay.engine.settings import EngineSettings
from parlay.engine.start import drafter_files
from parlay.errors import ParlayError
from parlay.llama import library
from parlay.planning.limits import Wanted, engine_contexts, load_list, plan_here
from parlay.planning.needs import Load
from parlay.planning.plan import Plan
from parlay.planning.room import with_snapshots, with_wide_passes
from parlay.planning.shape import read_shape

log = logging.getLogger("parlay.engine")
# Every pass, a plain one too, writes something for each of them: on an H200 sixteen took 11 % of a
# 27B's plain pass. A draft model's drafts come every round and mostly end in a rejection: they are
# worth it. What is found in the text is drafted seldom, and far where it is sure; drafts wider than
# these are taken back by copies. On a CPU they take next to nothing.
_MOST_SNAPSHOTS, _MOST_FOR_FINDS = 7, 1


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


def choose_rows(settings: EngineSettings, n_snapshots: int) -> int:
    """Of a pass: as many as the batch, or as let a GPU read several prompts at once."""
    if not settings.widens or not _on_gpu(settings):
        return settings.context.n_batch
    kept = replace(settings.context, n_snapshots=n_snapshots)
    loads = load_list(*wanted_files(replace(settings, context=kept)))
    plan = partial(plan_here, budget_gb=settings.vram_budget_gb)
    chosen = with_wide_passes(loads, plan)[0].context.n_batch
    log.info("passes of %d rows over prompts", chosen)
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
    if settings.window is not None:
        return min(settings.window, _MOST_SNAPSHOTS)
    most = (
        _MOST_SNAPSHOTS
        if drafter_files(settings.draft) or not _on_gpu(settings)
        else _MOST_FOR_FINDS
    )
    return min(settings.widest, most, settings.context.rows_at_once - 1)


def _on_gpu(settings: EngineSettings) -> bool:
    return settings.model.gpu_layers != 0 and any(d.kind == "gpu" for d in library.devices())


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
