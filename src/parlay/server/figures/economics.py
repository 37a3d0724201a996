"""Whether speculation can pay here: what passes cost, and the acceptance above which guessing wins.

Knows the controller's cost table and the bench's arithmetic; no HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from parlay.control.prices.breakeven import RoundCosts, Window, value
from parlay.server.lifecycle.service import Service

_N_CONTEXT = 256  # tokens in the cache, for the curve that is shown
_MIN_POINTS = 2
_MIN_DRAFTED = 20  # below, the acceptance of late says nothing


@dataclass(frozen=True, slots=True)
class ServedAcceptance:
    """What became of the drafts of late."""

    by_position: tuple[float, ...]
    share: float


def costs_of(service: Service) -> RoundCosts | None:
    """The controller's prices as they are now; None where it prices nothing."""
    table = service.engine.prices
    if table is None:
        return None
    curve = table.curve(_N_CONTEXT, 1)
    widest = service.engine.settings.widest + 1
    known = [b for b in sorted(curve.known | {1}) if b <= widest]
    if len(known) < _MIN_POINTS:  # not measured yet
        return None
    drafter = table.drafter if "model" in service.engine.drafts.proposers else None
    pace = table.pace  # of the machine, whatever computes on it
    drafts = {} if drafter is None else {b - 1: pace * drafter.draft_s(b - 1) for b in known[1:]}
    return RoundCosts({b: pace * curve.steady[b] for b in known}, drafts)


def acceptance_of(service: Service) -> ServedAcceptance | None:
    """Of the last rounds of the whole server."""
    counts = service.observer.recent_counts()
    if counts.n_drafted < _MIN_DRAFTED:
        return None
    return ServedAcceptance(tuple(counts.acceptance_by_position), counts.token_acceptance)


def economics(
    costs: RoundCosts | None, acceptance: ServedAcceptance | None, proposers: Sequence[str]
) -> dict[str, Any]:
    """The prices, what each window needs, and what follows from it in a sentence."""
    if costs is None:
        return _unknown(acceptance)
    seen = acceptance.by_position if acceptance else ()
    paid = costs
    rows = [value(paid, k, seen) for k in range(1, max(paid.target))]
    headline, text = _words(rows, acceptance, proposers)
    plain_s = paid.target_s(1)
    return {
        "headline": headline,
        "text": text,
        "plain_ms": round(1e3 * plain_s, 4),
        "drafter_ms": round(1e3 * plain_s * paid.per_token, 4) if paid.draft else None,
        "rows": [{"rows": b, "ms": round(1e3 * s, 4)} for b, s in sorted(paid.target.items())],
        "windows": [_row(row) for row in rows],
        "acceptance": None if acceptance is None else round(acceptance.share, 4),
    }


def _row(found: Window) -> dict[str, Any]:
    names = ("window", "cost", "tokens", "speedup", "break_even")
    told = {name: getattr(found, name) for name in names}
    return {name: None if number is None else round(number, 6) for name, number in told.items()}


def _unknown(acceptance: ServedAcceptance | None) -> dict[str, Any]:
    return {
        "headline": "Not measured yet.",
        "text": "The quick A/B below times passes of this model on this machine.",
        "plain_ms": None,
        "drafter_ms": None,
        "rows": [],
        "windows": [],
        "acceptance": None if acceptance is None else round(acceptance.share, 4),
    }


def _words(
    rows: Sequence[Window], acceptance: ServedAcceptance | None, proposers: Sequence[str]
) -> tuple[str, str]:
    who = " and ".join(proposers) or "no proposer"
    paying = [row for row in rows if row.break_even is not None]
    if not paying:
        return (
            f"On this machine, with {who}, speculation cannot pay.",
            "A pass over several tokens costs as much as that many passes over one.",
        )
    best = min(paying, key=lambda row: (row.break_even or 0.0, row.window))
    needed = best.break_even or 0.0
    headline = f"On this machine, with {who}, speculation pays above {_pct(needed)} acceptance."
    cost = f"With a window of {best.window} a round costs {best.cost:.2f} plain passes."
    if acceptance is None:
        return headline, f"{cost} Nothing was drafted lately, so where you are is not known yet."
    side = "above" if acceptance.share > needed else "below"
    return headline, f"{cost} Lately {_pct(acceptance.share)} of the guesses held: {side} the line."


def _pct(share: float) -> str:
    return f"{100 * share:.0f} %"
