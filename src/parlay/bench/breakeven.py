"""Why a result is what it is: measured costs, measured acceptance, and the window where they meet.

Pure arithmetic on T(b), the drafter's cost and acceptance; knows neither models nor samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated

from pydantic import Field

from parlay.bench.comparison import Acceptance, Interval, Share
from parlay.reading.bounds import Finite, Reason, Seconds, Strict

MAX_WINDOW = 64
Factor = Annotated[Finite, Field(ge=0, le=1e4)]


class CostPoint(Strict):
    """The time of one target pass over so many tokens of one sequence."""

    rows: Annotated[int, Field(ge=1, le=4096)]
    seconds: Annotated[Seconds, Field(gt=0)]


class Costs(Strict):
    """Measured on this machine, with this build and this file."""

    target: list[CostPoint] = Field(min_length=1, max_length=256)
    drafter_s_per_token: Seconds | None = None

    def target_s(self, rows: int) -> float:
        """T(rows), on a straight line between measured points, flat before and steep after."""
        points = sorted(self.target, key=lambda p: p.rows)
        for low, high in pairwise(points):
            if low.rows <= rows <= high.rows:
                share = (rows - low.rows) / (high.rows - low.rows)
                return low.seconds + share * (high.seconds - low.seconds)
        end = points[-1]
        return end.seconds * rows / end.rows if rows > end.rows else points[0].seconds


class WindowRow(Strict):
    """One window: what a round costs in plain steps, what it makes, what it would need."""

    window: Annotated[int, Field(ge=1, le=MAX_WINDOW)]
    cost: Factor  # (T(k+1) + k drafter steps) / T(1)
    tokens: Factor | None  # expected from the measured acceptance by position
    speedup: Factor | None
    break_even: Share | None  # acceptance per token at which it pays; None: never


class BreakEven(Strict):
    """The table, and what follows from it in words."""

    windows: list[WindowRow] = Field(max_length=MAX_WINDOW)
    cycle_cost: Factor | None  # measured: time of a round over T(1)
    expected: Factor | None  # acceptance length over cycle cost
    text: Reason


def analyse(
    costs: Costs,
    acceptance: Acceptance | None,
    speedup: Interval | None,
    cycle_s: float | None,
    plain_s: float | None = None,
) -> BreakEven:
    """`cycle_s`, `plain_s`: measured seconds of an average round of the candidate and of the
    baseline; the latter is better than T(1), which was timed at another length of the context."""
    by_position = acceptance.by_position if acceptance else []
    widest = min(MAX_WINDOW, max(max(p.rows for p in costs.target) - 1, 1))
    rows = [_row(costs, k, by_position) for k in range(1, widest + 1)]
    cycle = cycle_s / (plain_s or costs.target_s(1)) if cycle_s else None
    length = acceptance.acceptance_length if acceptance else None
    expected = round(length / cycle, 6) if length and cycle else None
    return BreakEven(
        windows=rows,
        cycle_cost=round(cycle, 6) if cycle else None,
        expected=expected,
        text=_words(rows, cycle, length, speedup),
    )


def _row(costs: Costs, k: int, by_position: Sequence[float]) -> WindowRow:
    plain = costs.target_s(1)
    cost = (costs.target_s(k + 1) + k * (costs.drafter_s_per_token or 0.0)) / plain
    tokens = expected_tokens(by_position, k) if by_position else None
    needed = break_even(cost, k)
    return WindowRow(
        window=k,
        cost=round(cost, 6),
        tokens=round(tokens, 6) if tokens else None,
        speedup=round(tokens / cost, 6) if tokens else None,
        break_even=round(needed, 6) if needed is not None else None,
    )


def expected_tokens(by_position: Sequence[float], k: int) -> float:
    """1 + S(1) + ... + S(k); past the last position seen, the last acceptance goes on."""
    total, survival = 1.0, 1.0
    for j in range(k):
        survival *= by_position[min(j, len(by_position) - 1)]
        total += survival
    return total


def break_even(cost: float, k: int) -> float | None:
    """The acceptance per token at which 1 + a + ... + a^k pays the cost; None if none does."""
    if cost <= 1:
        return 0.0
    if cost > k + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        made = sum(middle**j for j in range(k + 1))
        low, high = (middle, high) if made < cost else (low, middle)
    return high


def _words(
    rows: list[WindowRow], cycle: float | None, length: float | None, speedup: Interval | None
) -> str:
    parts = []
    if cycle and length:
        verb = "pays" if length > cycle else "does not pay"
        parts.append(
            f"A round cost {cycle:.2f} plain steps and made {length:.2f} tokens: it {verb}"
        )
    best = max((r for r in rows if r.speedup), key=lambda r: r.speedup or 0, default=None)
    if best is not None and best.speedup is not None:
        word = f"window {best.window} ({best.speedup:.2f}x)" if best.speedup > 1 else "no window"
        parts.append(f"where it drafts, the cost table favours {word}")
    if speedup is not None:
        parts.append(f"measured {speedup.ratio:.2f}x")
    return "; ".join(parts) or "costs were measured, acceptance was not"
