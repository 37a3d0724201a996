"""Drafts and rounds made by hand, for tests of the control package."""

from __future__ import annotations

from collections.abc import Mapping

from parlay.control.prices.cost import CostTable
from parlay.control.prices.curve import Curve
from parlay.control.prices.drafter_cost import DrafterCost
from parlay.decoding.draft import Draft
from parlay.decoding.round import Fallback, Round, Timing


def table(
    slope: float = 0.3, drafter: float | None = 0.1, change: float = 0.0, stable: bool = True
) -> CostTable:
    """A plain pass takes a second; each further row, a change of shape, a draft token a share.

    A row costs the same whosever it is: up to eight sequences were measured.
    """
    steady = {1: 1.0, 17: 1.0 + 16 * slope}
    changed = {rows: seconds + change for rows, seconds in steady.items()} if change else {}
    cost = None
    if drafter is not None:
        cost = DrafterCost(Curve({1: drafter, 17: 2 * drafter}, {}), single_steps=False)
    curves = {(1, n): Curve(steady, changed) for n in (1, 2, 4, 8)}
    return CostTable(curves, cost, name="made", stable=stable)


def draft(proposer: str, *confidence: float) -> Draft:
    return Draft((7,) * len(confidence), proposer, confidence)


def finished(
    proposer: str = "none",
    n_drafted: int = 0,
    n_accepted: int = 0,
    seconds: float = 1.0,
    seq_id: int = 0,
    confidence: tuple[float, ...] = (),
    fallback: Fallback | None = None,
    n_pass_rows: int | None = None,
    agreed: Mapping[str, int] | None = None,
    n_context: int = 50,
) -> Round:
    return Round(
        seq_id=seq_id,
        proposer=proposer,
        window=n_drafted,
        n_drafted=n_drafted,
        n_accepted=n_accepted,
        n_generated=n_accepted + 1,
        confidence=confidence,
        n_rows=n_drafted + 1,
        n_sequences=1,
        n_pass_rows=n_drafted + 1 if n_pass_rows is None else n_pass_rows,
        n_context=n_context,
        timing=Timing(verify_s=seconds),
        fallback=fallback,
        agreed=agreed or {},
    )
