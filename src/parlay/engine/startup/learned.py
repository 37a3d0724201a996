"""What controllers learned of a pair of models, kept between runs and among processes.

Knows the store and what a controller keeps; whoever saw more of a proposer is believed, so that the
last one to write takes nothing away from the others.
"""

from __future__ import annotations

from typing import Any

from parlay import store
from parlay.control.budget import BudgetController, Promise
from parlay.control.choice import Controller
from parlay.control.prices.cost import CostTable
from parlay.control.prices.cutting import APART, Cutting
from parlay.control.rates import Rates
from parlay.engine.exact.class_choice import Seen

_KIND = "learned"


def learned_controller(
    costs: CostTable, key: str, cutting: Cutting = APART, promise: Promise = "sum"
) -> BudgetController:
    """A controller that begins with what was learned; with nothing, where that makes no sense."""

    def made(kept: dict[str, Any]) -> BudgetController:
        return BudgetController(costs, kept, cutting=cutting, promise=promise)

    return store.read(_KIND, key, made) or made({})


def learned_acceptance(key: str) -> dict[str, Seen]:
    """By proposer, how many of its tokens were tried in earlier runs, and how many held."""
    return store.read(_KIND, key, _seen) or {}


def _seen(kept: dict[str, Any]) -> dict[str, Seen]:
    found = {who: Rates(each) for who, each in kept["rates"].items()}
    return {
        who: Seen(sum(r * n for r, n in zip(each.right, each.n, strict=True)), sum(each.n))
        for who, each in found.items()
    }


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
