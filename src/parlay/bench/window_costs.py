"""Measures what the break-even needs: the target's T(b), over the shapes that windows use.

Runs on the thread that owns the models, in an empty slot; knows no prompts.
"""

from __future__ import annotations

from typing import Final

from parlay.bench.breakeven import Costs
from parlay.bench.subjects.own import on_worker
from parlay.bench.window_passes import time_passes
from parlay.parlay import Parlay

ROWS: Final = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17)


def measure(parlay: Parlay, n_times: int = 5, budget_s: float = 20.0) -> Costs:
    """T(b) for shapes that windows use, the fastest of several passes each."""

    def run() -> Costs:
        points = time_passes(parlay.engine.target, ROWS, n_times, budget_s)
        for slot in parlay.engine.slots.all:
            slot.tokens = []  # what they held has been overwritten
        return Costs(target=points)

    return on_worker(parlay, run)
