"""Why a result is what it is: its costs and its acceptance as a table of windows, and in words.

The record's form of what `control/prices/breakeven.py` computes; knows neither models nor samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from parlay.bench.comparison import Acceptance, Interval, Share
from parlay.control.prices.breakeven import RoundCosts, value
from parlay.reading.bounds import Finite, Reason, Seconds, Strict

MAX_WINDOW = 64
Factor = Annotated[Finite, Field(ge=0, le=1e4)]


class CostPoint(Strict):
    """The time of one target pass over so many tokens of one sequence."""

    rows: Annotated[int, Field(ge=1, le=4096)]
    seconds: Annotated[Seconds, Field(gt=0)]


class DraftPoint(Strict):
    """The time of one whole draft of so many tokens."""

    tokens: Annotated[int, Field(ge=1, le=4096)]
    seconds: Seconds


class Costs(Strict):
    """Measured on this machine, with this build and this file."""

    target: list[CostPoint] = Field(min_length=1, max_length=256)
    drafter_s_per_token: Seconds | None = None
    drafts: list[DraftPoint] = Field(default_factory=list, max_length=256)  # better than the mean

    @model_serializer(mode="wrap")
    def _as_ever(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Records made before whole drafts were timed keep their contents, and so their hash."""
        made: dict[str, Any] = dump(self)
        if not self.drafts:
            made.pop("drafts", None)
        return made

    @classmethod
    def of(cls, costs: RoundCosts) -> Costs:
        """From the arithmetic's form."""
        target = [CostPoint(rows=b, seconds=s) for b, s in sorted(costs.target.items())]
        drafts = [DraftPoint(tokens=n, seconds=s) for n, s in sorted(costs.draft.items())]
        return cls(target=target, drafts=drafts)

    @property
    def of_rounds(self) -> RoundCosts:
        """The same as the arithmetic wants it."""
        drafts = {point.tokens: point.seconds for point in self.drafts}
        token_s = self.drafter_s_per_token
        if not drafts and token_s is not None:
            drafts = {1: token_s, 2: 2 * token_s}
        return RoundCosts({point.rows: point.seconds for point in self.target}, drafts)


class WindowRow(Strict):
    """One window: what a round costs in plain steps, what it makes, what it would need."""

    window: Annotated[int, Field(ge=1, le=MAX_WINDOW)]
    cost: Factor  # (T(k+1) + the draft) / T(1)
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
    paid = costs.of_rounds
    rows = [window_row(paid, k, by_position) for k in range(1, widest + 1)]
    cycle = cycle_s / (plain_s or paid.target_s(1)) if cycle_s else None
    length = acceptance.acceptance_length if acceptance else None
    expected = round(length / cycle, 6) if length and cycle else None
    return BreakEven(
        windows=rows,
        cycle_cost=round(cycle, 6) if cycle else None,
        expected=expected,
        text=_words(rows, cycle, acceptance, speedup),
    )


def window_row(costs: RoundCosts, k: int, by_position: Sequence[float]) -> WindowRow:
    """One row of the table."""
    found = value(costs, k, by_position)
    return WindowRow(
        window=k,
        cost=round(found.cost, 6),
        tokens=_rounded(found.tokens),
        speedup=_rounded(found.speedup),
        break_even=_rounded(found.break_even),
    )


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 6)


def _words(
    rows: list[WindowRow],
    cycle: float | None,
    acceptance: Acceptance | None,
    speedup: Interval | None,
) -> str:
    parts = []
    if acceptance is not None and not acceptance.counts.drafted:
        parts.append("Nothing was drafted: every round was a plain step")
    else:
        parts += _round_words(cycle, acceptance)
        parts += _window_words(rows)
    if speedup is not None:
        parts.append(f"measured {speedup.ratio:.2f}x")
    return "; ".join(parts) or "costs were measured, acceptance was not"


def _round_words(cycle: float | None, acceptance: Acceptance | None) -> list[str]:
    length = acceptance.acceptance_length if acceptance else None
    if not cycle or not length:
        return []
    verb = "pays" if length > cycle else "does not pay"
    return [f"A round cost {cycle:.2f} plain steps and made {length:.2f} tokens: it {verb}"]


def _window_words(rows: list[WindowRow]) -> list[str]:
    best = max((r for r in rows if r.speedup), key=lambda r: r.speedup or 0, default=None)
    if best is None or best.speedup is None:
        return []
    word = f"window {best.window} ({best.speedup:.2f}x)" if best.speedup > 1 else "no window"
    return [f"where it drafts, the cost table favours {word}"]
