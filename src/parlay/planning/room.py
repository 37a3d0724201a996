"""What is left to us where nobody said: rows of a pass, and snapshots of a recurrent state.

Knows what they take and what is free; knows nothing of prompts, drafts or of what passes cost.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace

from parlay.planning.needs import Load
from parlay.planning.plan import Plan

# Enough for two usual prompts. 2,048 read many at once somewhat faster, and take twice the buffers.
WIDE_ROWS = 1024
# Of what is left beside weights, caches and buffers: others may want some of it.
_SHARE = 0.5


def with_wide_passes(
    loads: Sequence[Load], plan: Callable[[Sequence[Load]], Plan]
) -> Sequence[Load]:
    """The same loads, the first one with wide passes if all of it is on a GPU that has room."""
    target, *others = loads
    usual = plan(loads)
    narrow = target.context.rows_at_once < WIDE_ROWS
    if not (usual.has_gpu and narrow and target.model.all_on_gpu(target.shape.n_layers)):
        return loads
    wide = [replace(target, context=replace(target.context, n_batch=WIDE_ROWS)), *others]
    made = plan(wide)
    return wide if made.verdict == "fits" and made.left >= _SHARE * usual.left else loads


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
