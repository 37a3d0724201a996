"""What the windows of a resident runtime cost: passes run to be timed, or rounds of real answers.

Knows the runtime and its counts; what follows from them is in `control/prices/breakeven.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from parlay.bench.analysis import Costs
from parlay.bench.subjects.own import on_worker
from parlay.control.prices.breakeven import RoundCosts
from parlay.decoding.counts import Counts
from parlay.parlay import Parlay
from parlay.timing.window_passes import time_passes

ROWS: Final = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17)
_LAPS = 3
_WINDOWS = (0, 1, 2, 3, 4, 6, 8, 12, 16)


def measure(parlay: Parlay, n_times: int = 5, budget_s: float = 20.0) -> Costs:
    """T(b) for shapes that windows use, the fastest of several passes each."""

    def run() -> Costs:
        found = time_passes(parlay.engine.target, ROWS, n_times, budget_s)
        for slot in parlay.engine.slots.all:
            slot.tokens = []  # what they held has been overwritten
        return Costs.of(RoundCosts(found))

    return on_worker(parlay, run)


def measure_rounds(answer: Callable[[int], Counts], widest: int) -> RoundCosts:
    """Passes by their rows and drafts by their tokens, from answers made with one window each.

    Another job on the same cores only ever adds time, so the least is nearest to the truth.
    """
    windows = sorted({*(k for k in _WINDOWS if k <= widest), widest})
    target = dict.fromkeys((k + 1 for k in windows), math.inf)
    draft: dict[int, float] = {}
    for k in windows * _LAPS:
        counts = answer(k)
        target[k + 1] = min(target[k + 1], counts.verify_s / max(1, counts.n_rounds))
        if counts.n_drafted:
            whole = k * counts.draft_s / counts.n_drafted  # a text's last draft may be shorter
            draft[k] = min(draft.get(k, math.inf), whole)
    return RoundCosts(target, draft)
