"""An engine's settings with what was left open found: the context and the layers that fit.

Asks the plan; loads nothing.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from parlay.engine.settings import EngineSettings
from parlay.engine.startup.snapshots import useful_snapshots, wanted_files
from parlay.planning.limits import fit_here, load_list

log = logging.getLogger("parlay.chosen")


def fit_engine(settings: EngineSettings, *, context: bool, layers: bool) -> EngineSettings:
    """The longest context, the most layers on the GPU, or both; told in a line."""
    if not context and not layers:
        return settings
    target, drafters = wanted_files(settings)
    kept = replace(target.context, n_snapshots=useful_snapshots(settings))
    loads = load_list(replace(target, context=kept), drafters)
    found = fit_here(
        loads,
        context=context,
        layers=layers,
        budget_gb=settings.vram_budget_gb,
    )
    log.info(found.line)
    return replace(
        settings,
        context=replace(settings.context, context_size=found.context_size),
        snapshots=kept.n_snapshots or settings.snapshots,  # there is room: they were counted
        model=replace(settings.model, gpu_layers=found.gpu_layers, n_cpu_moe=found.n_cpu_moe),
    )
