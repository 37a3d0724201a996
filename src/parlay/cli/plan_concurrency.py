"""`parlay plan --concurrency`: what batch does to the bet, and how many machines a log needs.

Gathers prices, odds and arrivals, and shows what `parlay.fleet` makes of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from parlay.control.prices.cost import CostTable, load_costs
from parlay.errors import BadRequest
from parlay.fleet.arrivals import Arrival, busiest, denser, from_log, rate_of
from parlay.fleet.exact_rows import ExactRows
from parlay.fleet.odds import Odds, recorded_odds
from parlay.fleet.prices import Prices
from parlay.fleet.simulated_machine import PassShape
from parlay.fleet.simulation import SimulationOutcome, Way, simulate
from parlay.fleet.sizing import Goals, Size, machines_needed
from parlay.fleet.streams import Point, best_windows, crossing, speedups
from parlay.fleet.tables import cost_tables
from parlay.hub.resolving import resolve_model
from parlay.planning.requests import read_logs
from parlay.replay.recording import mixed_workload
from parlay.runtime.exact.class_calibration import exact_rows_told

MAX_REQUESTS = 3000  # of a log: its busiest stretch
_STREAMS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_DEFAULT_SLOTS = 16
_SHORT_TEXT = 256


@dataclass(frozen=True, slots=True)
class Question:
    """What was asked on the command line."""

    target: str
    draft: Path | None
    slots: int | None
    costs: str | None
    proposer: str | None
    acceptance: float | None
    log: Path | None
    goals: Goals
    times: float
    seed: int


@dataclass(frozen=True, slots=True)
class Fleet:
    """One way of decoding: how many machines, and what they make of the log."""

    name: str
    size: Size

    def as_dict(self) -> dict[str, Any]:
        return {
            "way": self.name,
            "machines": self.size.n_machines,
            "goals_kept": self.size.kept,
            **self.size.outcome.as_dict(),
        }


def answer(question: Question, json_output: bool, say: Callable[[str], None]) -> bool:
    """Show it; whether speculation pays anywhere and, with a log, the goals can be kept."""
    costs = _costs(question, say)
    prices = Prices(costs)
    odds = _odds(question, prices)
    shape = PassShape(
        _slots(question, prices), exact=_exact(question, _slots(question, prices), say)
    )
    streams = [n for n in _STREAMS if n < shape.slots] + [shape.slots]
    arrivals = _arrivals(question.log, question.times) if question.log is not None else []
    points = speedups(prices, odds, shape, streams, n_context=_context(arrivals))
    fleets = _fleets(arrivals, prices, odds, shape, points, question) if arrivals else []
    if json_output:
        typer.echo(json.dumps(_record(costs, prices, odds, shape, points, arrivals, fleets)))
    else:
        _show(costs, prices, odds, points, arrivals, fleets, question.goals)
    return any(point.window for point in points) and all(f.size.kept for f in fleets)


def _slots(question: Question, prices: Prices) -> int:
    if question.slots is not None:
        return question.slots
    return max(_DEFAULT_SLOTS, prices.max_sequences)


def _exact(question: Question, n_slots: int, say: Callable[[str], None]) -> ExactRows | None:
    """The class that passes stay in on this machine, where a start with as many slots told it."""
    if question.costs is not None:
        return None
    found = exact_rows_told(resolve_model(question.target, say), n_slots)
    if found is not None:
        say("passes stay in the exact class of the last start")
    return found


# -- what it is made from ---------------------------------------------------------------------


def _costs(question: Question, say: Callable[[str], None]) -> CostTable:
    if question.costs is None:
        from parlay.timing.batch_table import WantedTable, batch_table

        wanted = WantedTable(
            resolve_model(question.target, say),
            question.draft,
            max_sequences=question.slots or _DEFAULT_SLOTS,
        )
        say("measuring what passes cost here, about a minute, once ...")
        return batch_table(wanted)
    known = cost_tables()
    path = known.get(question.costs, Path(question.costs))
    if not path.is_file():
        raise BadRequest(f"no cost table {question.costs!r}; a file, or: {', '.join(known)}")
    return load_costs(path)


def _odds(question: Question, prices: Prices) -> Odds:
    if question.acceptance is not None:
        odds = Odds.flat(question.acceptance)
    else:
        chosen = question.proposer or ("model" if prices.has_drafter else "suffix")
        odds = recorded_odds(mixed_workload(), chosen)
    if odds.drafts_by_model and not prices.has_drafter:
        raise BadRequest(
            f"the cost table {prices.name} has no drafter; add --draft, or --proposer suffix"
        )
    return odds


def _arrivals(log: Path, times: float) -> list[Arrival]:
    found = from_log(read_logs([log]).requests)
    return busiest(denser(found, times), MAX_REQUESTS)


def _context(arrivals: list[Arrival]) -> int:
    """Tokens in the cache in the middle of a usual answer."""
    if not arrivals:
        return _SHORT_TEXT
    return round(median(a.n_prompt + a.n_answer / 2 for a in arrivals))


def _fleets(
    arrivals: list[Arrival],
    prices: Prices,
    odds: Odds,
    shape: PassShape,
    points: list[Point],
    question: Question,
) -> list[Fleet]:
    windows = best_windows(points)
    ways = {"plain": Way(), "speculative": Way(odds, lambda n: windows.get(n, 0))}

    def sized(way: Way) -> Size:
        def run(n_machines: int) -> SimulationOutcome:
            seed = question.seed
            return simulate(arrivals, prices, shape, way, n_machines=n_machines, seed=seed)[0]

        return machines_needed(run, question.goals, len(arrivals))

    return [Fleet(name, sized(way)) for name, way in ways.items()]


# -- how it is shown --------------------------------------------------------------------------


def _record(
    costs: CostTable,
    prices: Prices,
    odds: Odds,
    shape: PassShape,
    points: list[Point],
    arrivals: list[Arrival],
    fleets: list[Fleet],
) -> dict[str, Any]:
    return {
        "costs": {"name": costs.name, "origin": costs.origin, "stable": costs.stable},
        "measured_sequences": prices.max_sequences,
        "odds": {
            "name": odds.name,
            "offered": round(odds.offered, 4),
            "by_position": [round(p, 4) for p in odds.by_position],
        },
        "slots": shape.slots,
        "streams": [point.as_dict() for point in points],
        "pays_up_to": max((p.n_streams for p in points if p.window), default=0),
        "crossing": crossing(points),
        "log": _log_record(arrivals),
        "fleets": [fleet.as_dict() for fleet in fleets],
    }


def _log_record(arrivals: list[Arrival]) -> dict[str, Any] | None:
    if not arrivals:
        return None
    rate = rate_of(arrivals)
    return {
        "requests": len(arrivals),
        "requests_per_second": round(rate, 4) if rate < float("inf") else None,
    }


def _show(
    costs: CostTable,
    prices: Prices,
    odds: Odds,
    points: list[Point],
    arrivals: list[Arrival],
    fleets: list[Fleet],
    goals: Goals,
) -> None:
    out = Console(highlight=False)
    out.print(f"prices: {costs.name or 'unnamed'}; {costs.origin}", style="dim")
    if not costs.stable:
        out.print("the machine was busy while this was measured; measure again", style="yellow")
    if not prices.measured_together:
        out.print("measured for one sequence only: several are priced by rows", style="yellow")
    offers = "" if odds.offered >= 1 else f", a draft in {odds.offered:.0%} of rounds"
    out.print(f"odds: {odds.name}, first token {odds.by_position[0]:.0%}{offers}\n")
    out.print(_stream_table(points))
    out.print(_verdict(points))
    if fleets:
        rate = rate_of(arrivals)
        out.print(f"\n{len(arrivals)} requests, {rate:.3g} a second; goals {_goals(goals)}")
        out.print(_fleet_table(fleets))


def _stream_table(points: list[Point]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("streams", "plain tok/s", "window", "tok/s", "speed-up"):
        table.add_column(column, justify="right")
    for p in points:
        table.add_row(
            str(p.n_streams),
            f"{p.plain_tps:,.1f}",
            str(p.window or "-"),
            f"{p.best_tps:,.1f}",
            f"{p.speedup:.2f}x",
        )
    return table


def _verdict(points: list[Point]) -> str:
    at = crossing(points)
    paying = [p for p in points if p.window]
    if not paying:
        return "no draft pays at any number of streams"
    if at is None:
        return f"drafts pay up to {points[-1].n_streams} streams, all that were looked at"
    return f"drafts pay up to {paying[-1].n_streams} streams; from {at} on none does"


def _goals(goals: Goals) -> str:
    named = (("first token", goals.ttft_ms), ("each token", goals.tpot_ms))
    parts = [f"{name} {ms:g} ms" for name, ms in named if ms is not None]
    return " and ".join(parts) + " for 95 of 100" if parts else "none given"


def _fleet_table(fleets: list[Fleet]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("")
    for column in ("machines", "busy", "tok/s", "first token p50, p95", "each token p50, p95"):
        table.add_column(column, justify="right")
    for fleet in fleets:
        size, seen = fleet.size, fleet.size.outcome
        table.add_row(
            fleet.name,
            str(size.n_machines) if size.kept else f"more than {size.n_machines}",
            f"{seen.utilisation:.0%}",
            f"{seen.tokens_per_s:,.1f}",
            f"{seen.ttft_ms[0]:,.0f}, {seen.ttft_ms[1]:,.0f} ms",
            f"{seen.tpot_ms[0]:,.1f}, {seen.tpot_ms[1]:,.1f} ms",
        )
    return table
