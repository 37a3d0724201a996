"""What controllers learned of a pair of models, kept between runs and among processes.

Knows the store and the controller; whoever saw more of a proposer is believed, so that the last one
to write takes nothing away from the others.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from parlay import store
from parlay.control.choice import Controller
from parlay.control.prices.cost import CostTable
from parlay.control.prices.cutting import APART, Cutting
from parlay.control.profit import ProfitController
from parlay.control.survival import Survival
from parlay.engine.by_profit import ByProfit

_KIND = "learned"


def learned_controller(
    costs: CostTable, key: str, cutting: Cutting = APART, *, glances: bool = True
) -> ByProfit:
    """A controller that begins with what was learned; with nothing, where that makes no sense."""
    make = partial(ProfitController, costs, cutting=cutting, glances=glances)
    return ByProfit(store.read(_KIND, key, make) or make())


def learned_survival(key: str) -> Survival:
    """How often drafts held in earlier runs; empty where nothing is known."""
    found = store.read(_KIND, key, lambda record: Survival.from_dict(record["survival"]))
    return found or Survival()


def keep_learned(key: str, controller: Controller) -> None:
    """For the next start, and for those who learn beside us."""
    mine = controller.kept()
    store.update(_KIND, key, lambda kept: joined(mine, kept or {}))


def joined(mine: dict[str, Any], kept: dict[str, Any]) -> dict[str, Any]:
    """Of each proposer and mode, what rests on more tries."""
    others = kept.get("survival")
    found = dict(mine["survival"])
    for mode, record in (others if isinstance(others, dict) else {}).items():
        if _n_tried(record) > _n_tried(found.get(mode)):
            found[mode] = record
    return {**mine, "survival": found}


def _n_tried(record: Any) -> int:
    try:
        return sum(sum(record[part]["tried"]) for part in ("by_confidence", "by_position"))
    except (KeyError, TypeError):
        return -1
