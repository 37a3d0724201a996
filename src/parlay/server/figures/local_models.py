"""Models on this machine, for someone who has nothing yet: which fit, and how to start with one.

Knows the hub's shelf and the plan. Names and sizes only: a path never leaves the server.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from parlay.deployment import Deployment
from parlay.errors import ParlayError
from parlay.hub import place
from parlay.hub.card import Card, cards, drafts_for
from parlay.llama.settings import ContextSettings, ModelSettings
from parlay.planning.devices import MemoryPool
from parlay.planning.limits import Wanted, load_list, plan_here, usable_pools
from parlay.web.browsers import is_loopback

MAX_MODELS = 50


def local_models(deployment: Deployment, serving: Path, used_bytes: int) -> list[dict[str, Any]]:
    """The largest that fits first. Told to people at this machine only, not to a team's clients.

    `used_bytes`: what the model that is served now takes, which another one could have instead.
    """
    if not is_loopback(deployment.server.host):
        return []
    found = [card for card in cards(place.everything())[:MAX_MODELS] if card.says.kind == "model"]
    pools = _freed(usable_pools(), used_bytes)
    rows = [_row(card, found, serving, pools) for card in found]
    return sorted(rows, key=lambda row: (not row["fits"], -int(row["bytes"])))


def _row(
    card: Card, found: Sequence[Card], serving: Path, pools: Sequence[MemoryPool]
) -> dict[str, Any]:
    says = card.says
    return {
        "name": card.entry.name,
        "program": card.entry.program,
        "bytes": says.n_bytes,
        "quantisation": says.quantisation,
        "architecture": says.architecture,
        "fits": _fits(card, pools),
        "serving": card.entry.path.resolve() == serving.resolve(),
        "drafts_for": [target.entry.name for target in drafts_for(card, found)],
        "command": f"parlay serve {shlex.quote(card.entry.name)}",
    }


def _fits(card: Card, pools: Sequence[MemoryPool]) -> bool:
    wanted = Wanted(card.entry.path, ModelSettings(), ContextSettings())
    try:
        return plan_here(load_list(wanted), available=pools).verdict == "fits"
    except (ParlayError, OSError):  # gone meanwhile, or an architecture the plan does not know
        return False


def _freed(pools: Sequence[MemoryPool], used_bytes: int) -> list[MemoryPool]:
    """The first pool holds what is served: a GPU if there is one, else RAM."""
    first, *others = pools
    return [replace(first, free=min(first.total, first.free + used_bytes)), *others]
