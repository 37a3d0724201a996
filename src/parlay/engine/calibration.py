"""What passes cost here and what was learned of a pair, from one run to the next.

Knows one target, the store and what a controller keeps; knows no requests. Of what processes learn
beside each other whoever saw more of a proposer is believed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from parlay import store
from parlay.control.budget import BudgetController, Promise
from parlay.control.choice import Controller
from parlay.control.prices.cost import CostTable
from parlay.control.prices.cutting import APART, Cutting
from parlay.control.prices.drafter_cost import DrafterCost
from parlay.engine.settings import EngineSettings
from parlay.engine.start import MODEL, behind
from parlay.llama import library
from parlay.llama.context import Context
from parlay.llama.model import Model
from parlay.proposers.draft_model import DraftModel
from parlay.proposers.follower import Follower
from parlay.proposers.proposer import Proposer
from parlay.timing.measuring import (
    Progress,
    Stopwatch,
    measure,
    measure_drafter,
    measure_follower,
)

log = logging.getLogger("parlay.engine")


class Calibration:
    """Measures one target; keeps what it found on disk."""

    def __init__(
        self, settings: EngineSettings, model: Model, target: Context, progress: Progress
    ) -> None:
        self._settings = settings
        self._model = model
        self._target = target
        self._progress = progress
        self._widest = min(settings.widest, target.max_rollback)

    def _target_key(self, rows: int) -> str:
        settings = self._settings
        devices = [(d.name, d.description) for d in library.devices()]
        return store.fingerprint(
            store.file_identity(settings.target),
            library.build(),
            devices,
            settings.model,
            [store.file_identity(adapter.path) for adapter in settings.model.adapters],
            replace(settings.context, threads=self._threads, prompt_cache_bytes=0),
            self._target.cache_types,
            self._target.kernels is not None,
            self._target.recorder is not None,
            self._target.settings.n_snapshots,
            self._target.rollback,
            rows,
            *self._target.captured,
        )

    def costs(self, key: str, target: Stopwatch, drafters: Mapping[str, Proposer]) -> CostTable:
        """Measured once per machine, build, pair and settings; a busy machine is not believed."""
        known = self.known_costs(key)
        if known is not None:
            return known
        inner = behind(drafters.get(MODEL))
        passes = inner.passes if isinstance(inner, DraftModel) else None
        settings = self._settings
        found = measure(
            target,
            passes,
            max_window=self._widest,
            n_sequences=settings.context.n_sequences,
            most_rows=min(settings.most_rows, self._target.max_rollback + 1),
            progress=self._progress,
        )
        timed = () if passes is None else (MODEL,)
        price_drafters(found, {name: d for name, d in drafters.items() if name not in timed})
        if not found.stable:
            log.info("the machine is busy: what passes cost here will be measured again")
        else:
            store.save("costs", key, found.to_dict())
        return found

    def known_costs(self, key: str) -> CostTable | None:
        """What an earlier run measured."""
        again = self._settings.measure_again
        return None if again else store.read("costs", key, CostTable.from_dict)

    def pair_key(self, drafters: Iterable[Path]) -> str:
        """Under what prices and what was learned of these drafters are kept."""
        # One that is not there has no identity; loading it says what is wrong.
        identities = [store.file_identity(path) for path in drafters if path.is_file()]
        return store.fingerprint(self._target_key(self._settings.widest), identities)

    @property
    def _threads(self) -> int:
        return self._settings.context.threads or self._model.threads


def price_drafters(costs: CostTable, drafters: Mapping[str, Proposer]) -> None:
    """Measure what draft models cost, and put it into the table in place of what was there."""
    prices = {name: cost for name in drafters if (cost := _drafter_cost(drafters[name]))}
    costs.drafter = prices.pop(MODEL, costs.drafter)
    costs.drafters = prices


def _drafter_cost(drafter: Proposer) -> DrafterCost | None:
    inner = behind(drafter)
    if isinstance(inner, DraftModel):
        return measure_drafter(inner.passes)
    return measure_follower(drafter) if isinstance(drafter, Follower) else None


_KIND = "learned"


def learned_controller(
    costs: CostTable, key: str, cutting: Cutting = APART, promise: Promise = "sum"
) -> BudgetController:
    """A controller that begins with what was learned; with nothing, where that makes no sense."""

    def made(kept: dict[str, Any]) -> BudgetController:
        return BudgetController(costs, kept, cutting=cutting, promise=promise)

    return store.read(_KIND, key, made) or made({})


def keep_learned(key: str, controller: Controller) -> None:
    """For the next start, and for those who learn beside us."""
    mine = controller.kept()
    store.update(_KIND, key, lambda kept: joined(mine, kept or {}))


def joined(mine: dict[str, Any], kept: dict[str, Any]) -> dict[str, Any]:
    """Of each proposer, what rests on more tries."""
    others = kept.get("rates")
    found = dict(mine.get("rates", {}))
    for who, record in (others if isinstance(others, dict) else {}).items():
        if _n_tried(record) > _n_tried(found.get(who)):
            found[who] = record
    return {**mine, "rates": found}


def _n_tried(record: Any) -> float:
    try:
        return sum(map(float, record[1]))
    except (LookupError, TypeError, ValueError):
        return -1.0
