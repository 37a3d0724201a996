"""`parlay tune`: race everything that could draft for a target, and write down what won.

Turns options into a race and shows it; knows nothing of how it is run.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from parlay.cli.common import Json, Set, deployment_of, described, loading, say, settings
from parlay.hub.name import is_name
from parlay.hub.place import Entry
from parlay.hub.resolving import resolve_drafter, resolve_model
from parlay.llama.facts import read_facts
from parlay.tuning.candidates import Opener, candidates, sittings
from parlay.tuning.outcome import (
    TOO_LATE,
    Outcome,
    Row,
    check_out,
    outcome,
    write_deployment,
    write_pair,
)
from parlay.tuning.prompts import from_log, from_suite
from parlay.tuning.published import published
from parlay.tuning.tuner import Tuner

EXAMPLE = """
Example: parlay tune default

Example: parlay tune bartowski/Qwen2.5-7B-Instruct-GGUF:Q4_K_M --fetch --log requests.jsonl

Candidates are suffix, n-gram, the shipped drafters, the target's own head and every file here that
could draft for it; with --fetch also what is published under the usual names. The winner goes into
a deployment file and the manifest of pairs. Exit code 1: nothing pays, and the deployment is plain.
"""


_RACED = ("target", "draft", "window")  # what the race is about


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("tune", help=described("Find the fastest drafter by measurement.", EXAMPLE))(tune)


def tune(
    target: Annotated[str, typer.Argument(help="A model: file or name.")] = "default",
    minutes: Annotated[float, typer.Option(min=0.2, help="Time for all of it.")] = 10.0,
    out: Annotated[Path, typer.Option(help="The deployment file.")] = Path(
        "speculative-deploy.yaml"
    ),
    log: Annotated[
        Path | None, typer.Option(help="A request log with prompts (monitoring.log_prompts).")
    ] = None,
    suite: Annotated[str, typer.Option(help="Else: JSONL file, core-12 or core-60.")] = "core-12",
    drafter: Annotated[
        list[str] | None, typer.Option(help="A drafter to race too. May repeat.")
    ] = None,
    fetch: Annotated[bool, typer.Option("--fetch", help="Also what the hub has for it.")] = False,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", "-n", min=8, help="Default: as time allows.")
    ] = None,
    context_size: Annotated[int, typer.Option("--context-size", "-c", min=16)] = 4096,
    seed: Annotated[int, typer.Option(min=0, help="Which prompts, where there are many.")] = 0,
    set_key: Set = None,
    json_output: Json = False,
) -> None:
    """Race."""
    began = time.monotonic()
    check_out(out)
    path = resolve_model(target, say)
    read_facts(path)  # what is no model is not raced
    named = [Entry(name, resolve_drafter(name, say), "hub") for name in drafter or ()]
    for entry in named:
        read_facts(entry.path)  # whoever names one wants it raced: no model is an error
    found = candidates(path, context_size, published(path, say) if fetch else (), named)
    work = from_suite(suite, seed) if log is None else from_log(log, seed)
    given = {"runtime.context_size": context_size} | settings(set_key)
    options = loading(deployment_of(given))
    opener = Opener(path, work.raw, {k: v for k, v in options.items() if k not in _RACED})
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f} %"))
    with (
        tempfile.TemporaryDirectory(prefix="parlay-tune-") as folder,
        Progress(*columns, console=Console(stderr=True), transient=True) as bar,
    ):
        task = bar.add_task("loading", total=1.0)
        tuner = Tuner(
            work,
            sittings(found),
            opener.open,
            minutes * 60,
            Path(folder),
            lambda share, what: bar.update(task, completed=share, description=what[:48]),
            max_tokens,
            began=began,
        )
        tuner.run()
        result = outcome(tuner, found)
    write_deployment(
        out, target if is_name(target) else str(path.absolute()), work.suite.name, result
    )
    pair = None
    if result.winner is not None:
        best = result.rows[0]
        notes = f"{best.ratio:.2f}x [{best.low:.2f}, {best.high:.2f}] on {work.suite.name}"
        pair = write_pair(path, result.winner, f"parlay tune: {notes}").name
    if json_output:
        typer.echo(json.dumps({**result.as_dict(), "deployment": str(out), "pair": pair}))
    else:
        _show(result, out, pair)
    if result.winner is None:
        raise typer.Exit(1)


def _show(found: Outcome, deployment: Path, pair: str | None) -> None:
    out = Console(highlight=False)
    speed = found.plain_tokens_per_second
    out.print(
        f"plain decoding: {f'{speed:.1f} tok/s' if speed else 'not measured'};"
        f" {found.n_prompts} prompts, {found.n_tokens} tokens, {found.spent_s:.0f} s"
    )
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("candidate", overflow="fold", min_width=20)  # the shipped ones in one line
    for column in ("speed-up", "bounds", "pairs", "accepted", "MB", "same text"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("")
    for row in found.rows:
        style = "bold green" if row.state == "wins" else "" if row.ratio else "dim"
        table.add_row(*(Text(cell, style=style) for cell in _cells(row)))
    out.print(table)
    out.print(_verdict(found), soft_wrap=True)
    out.print(f"deployment {deployment}", markup=False, soft_wrap=True)
    if pair is not None:
        out.print(f"pair       {pair}", markup=False, soft_wrap=True)


def _cells(row: Row) -> list[str]:
    if row.ratio is None or row.low is None or row.high is None:
        return [row.label, *6 * ["-"], row.state]
    taken = "-" if row.token_acceptance is None else f"{row.token_acceptance:.0%}"
    bounds, size = f"{row.low:.2f}-{row.high:.2f}", f"{row.n_bytes / 1e6:.0f}"
    same = f"{row.n_identical}/{row.n_compared}"
    return [row.label, f"{row.ratio:.2f}x", bounds, str(row.n_pairs), taken, size, same, row.state]


def _verdict(found: Outcome) -> Text:
    """Who was not even tried may be faster than whoever was."""
    best = found.rows[0]
    n = sum(row.state == TOO_LATE for row in found.rows)
    late = f"; {n} of {len(found.rows)} were not raced: give more --minutes" if n else ""
    if found.winner is not None:
        return Text(f"{found.winner.label} wins: {best.ratio:.2f}x{late}", style="bold green")
    unsure = best.ratio is not None and best.high is not None and best.ratio > 1 < best.high
    more = f" ({best.label} might: more --minutes would tell)" if unsure else ""
    text = f"nothing is sure to pay here: the deployment decodes plainly{more}{late}"
    return Text(text, style="bold yellow")
