"""How many snapshots of its state a recurrent target keeps: as many as a draft may have tokens.

Knows what they take and what is free; knows nothing of drafts or of what passes cost.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace

from parlay.planning.needs import Load
from parlay.planning.plan import Plan

# Of what is left beside weights, caches and buffers: others may want some of it.
_SHARE = 0.5


def with_snapshots(
    loads: Sequence[Load], widest: int, plan: Callable[[Sequence[Load]], Plan]
) -> list[Load]:
    """The same loads, the first one with as many snapshots as a window needs and memory allows."""
    target, *others = loads
    if not target.shape.takes_back:
        return list(loads)

    def with_n(n: int) -> list[Load]:
        return [replace(target, context=replace(target.context, n_snapshots=n)), *others]

    least = (1.0 - _SHARE) * plan(with_n(0)).left

    def too_many(n: int) -> bool:
        made = plan(with_n(n))
        return made.verdict != "fits" or made.left < least

    return with_n(bisect_left(range(1, widest + 1), True, key=too_many))
