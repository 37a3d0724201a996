"""`parlay replay`: run a controller over recordings and cost tables, without any model.

Turns options into calls of `compare`; knows nothing below it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from parlay.cli.options import Json
from parlay.control.prices.cost import CostTable, load_costs, shipped_costs
from parlay.errors import BadRequest
from parlay.replay.contest import Contest, compare, controller_named
from parlay.replay.recording import Recording, load_recordings, mixed_workload, shipped_recordings

EXAMPLE = """
Example: parlay replay code math --costs gpu-27b-q5_0 --draft ngram,suffix,model

Names stand for the recordings and tables that come with Parlay; without any, all of them are used.
Ratios are averages over the recordings: how fast the controller is, relative to the other way.
"""


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("replay", help="Run a controller over recordings of drafts.", epilog=EXAMPLE)(
        replay
    )


def replay(
    trace: Annotated[
        list[str] | None, typer.Argument(help="Recordings: files, or names such as code.")
    ] = None,
    costs: Annotated[
        list[str] | None, typer.Option(help="Cost table: a file or a name; may be repeated.")
    ] = None,
    controller: Annotated[
        str,
        typer.Option(help="profit, none, fixed-K, plus-two-minus-one, tiers or ewma-profit."),
    ] = "profit",
    draft: Annotated[
        str, typer.Option(help="Proposers of the recordings, with commas between.")
    ] = "ngram,suffix,model",
    drafter_share: Annotated[
        float | None, typer.Option(min=0.0001, help="The drafter's token, in plain passes.")
    ] = None,
    fresh: Annotated[bool, typer.Option(help="Forget everything between recordings.")] = False,
    json_output: Json = False,
) -> None:
    """Tokens per second of a controller, of every fixed window, and of an oracle."""
    recordings = _recordings(trace or [])
    proposers = _proposers(draft, recordings)
    make = controller_named(controller, proposers[-1])
    tables = [_with_drafter(table, drafter_share) for table in _tables(costs or [])]
    found = [compare(recordings, table, proposers, make, fresh=fresh) for table in tables]
    if json_output:
        record = {"controller": controller, "draft": list(proposers), "fresh": fresh}
        typer.echo(json.dumps({**record, "results": [c.as_dict() for c in found]}))
    else:
        Console().print(_table(found))


def _recordings(names: list[str]) -> list[Recording]:
    if not names:
        return mixed_workload()
    paths = _paths(names, shipped_recordings(), ".jsonl.gz", "recording")
    return [recording for path in paths for recording in load_recordings(path)]


def _tables(names: list[str]) -> list[CostTable]:
    return [load_costs(path) for path in _paths(names, shipped_costs(), ".json", "cost table")]


def _paths(names: list[str], shipped: list[Path], suffix: str, what: str) -> list[Path]:
    known = {path.name.removesuffix(suffix): path for path in shipped}
    for name in names:
        if name not in known and not Path(name).is_file():
            raise BadRequest(f"no {what} {name}; give a file, or one of {', '.join(known)}")
    return [known.get(name) or Path(name) for name in names] or shipped


def _proposers(draft: str, recordings: list[Recording]) -> tuple[str, ...]:
    proposers = tuple(name.strip() for name in draft.split(",") if name.strip())
    recorded = recordings[0].offers
    for name in proposers:
        if name not in recorded:
            raise BadRequest(f"no proposer {name!r} was recorded; recorded: {', '.join(recorded)}")
    if not proposers:
        raise BadRequest("name at least one proposer, such as --draft suffix")
    return proposers


def _with_drafter(table: CostTable, share: float | None) -> CostTable:
    return table if share is None else table.with_drafter(share)


def _table(found: list[Contest]) -> Table:
    columns = ("plain", "controller", "best fixed", "oracle", "of best fixed", "of oracle", "least")
    table = Table("costs", *columns, caption="tok/s; averages of ratios; least over plain")
    for c in found:
        rates = [c.n_tokens / c.total(f) for f in ("plain_s", "seconds")]
        best = f"{c.n_tokens / c.best_s:.1f} ({c.best_proposer} {c.best_window})"
        table.add_row(
            c.costs,
            *(f"{rate:.1f}" for rate in rates),
            best,
            f"{c.n_tokens / c.total('oracle_s'):.1f}",
            f"{c.mean_over('best_fixed_s'):.3f}",
            f"{c.mean_over('oracle_s'):.3f}",
            f"{c.least_over('plain_s'):.3f}",
        )
    return table
