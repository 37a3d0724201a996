"""`parlay tune`: race everything that could draft for a target, and write down what won.

Turns options into a race; knows nothing of how it is run.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from parlay.cli.option_groups import with_groups
from parlay.cli.options import ContextSize, GpuLayers, Json, Threads
from parlay.cli.report import write
from parlay.errors import BadRequest
from parlay.hub.name import is_name
from parlay.hub.place import Entry
from parlay.hub.resolving import resolve_drafter, resolve_model
from parlay.llama.facts import read_facts
from parlay.results import community
from parlay.results.record import dump
from parlay.results.submission import build, refuse_leaks
from parlay.tuning import race_files
from parlay.tuning.candidate import Candidate, candidates
from parlay.tuning.outcome import TOO_LATE, Outcome, Row, outcome
from parlay.tuning.published import published
from parlay.tuning.race_prompts import Workload, from_log, from_suite
from parlay.tuning.sitting import Opener, sittings
from parlay.tuning.tuner import Tuner

EXAMPLE = """
Example: parlay tune default

Example: parlay tune bartowski/Qwen2.5-7B-Instruct-GGUF:Q4_K_M --fetch --log requests.jsonl

Candidates are suffix, n-gram, the shipped drafters, the target's own head and every file here that
could draft for it; with --fetch also what is published under the usual names. The winner goes into
a deployment file and the manifest of pairs. Exit code 1: nothing pays, and the deployment is plain.
"""
_MB = 1e6


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """What was asked for."""

    target: Annotated[str, typer.Argument(help="A model: file or name.")] = "default"
    minutes: Annotated[float, typer.Option(min=0.2, help="Time for all of it.")] = 10.0
    log: Annotated[
        Path | None, typer.Option(help="A request log with prompts (monitoring.log_prompts).")
    ] = None
    prompts: Annotated[str, typer.Option(help="JSONL file, core-12 or core-60.")] = "core-12"
    drafter: Annotated[
        list[str] | None, typer.Option(help="A drafter to race too. May repeat.")
    ] = None
    fetch: Annotated[bool, typer.Option("--fetch", help="Also what the hub has for it.")] = False
    out: Annotated[Path, typer.Option(help="The deployment file.")] = Path(
        "speculative-deploy.yaml"
    )
    submit: Annotated[
        str | None, typer.Option(help="Name of a submission for the map, written beside it.")
    ] = None
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", "-n", min=8, help="Default: as time allows.")
    ] = None
    context_size: ContextSize = 4096
    threads: Threads = 0
    gpu_layers: GpuLayers = -1
    seed: Annotated[int, typer.Option(min=0, help="Which prompts, where there are many.")] = 0
    json_output: Json = False

    def loading(self) -> dict[str, int]:
        """As `Parlay` takes them."""
        names = ("context_size", "threads", "gpu_layers")
        return {name: getattr(self, name) for name in names}

    def workload(self) -> Workload:
        if self.log is None:
            return from_suite(self.prompts, self.seed)
        return from_log(self.log, self.seed)


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("tune", help="Find the fastest drafter by measurement.", epilog=EXAMPLE)(
        with_groups(tune)
    )


def tune(options: TuneOptions) -> None:
    """Race."""
    began = time.monotonic()
    _check_out(options.out)
    path = resolve_model(options.target, _say)
    read_facts(path)  # what is no model is not raced
    found, work = _candidates(path, options), options.workload()
    opener = Opener(path, work.raw, options.loading())
    with tempfile.TemporaryDirectory(prefix="parlay-tune-") as folder, _bar() as show:
        tuner = Tuner(
            work, sittings(found), opener.open, options.minutes * 60, Path(folder), show,
            options.max_tokens, began=began,
        )  # fmt: skip
        tuner.run()
        result = outcome(tuner, found)
        files = _leave(tuner, result, path, work, options)
    if options.json_output:
        typer.echo(json.dumps({**result.as_dict(), **files}))
    else:
        _show(result, files)
    if result.winner is None:
        raise typer.Exit(1)


def _candidates(path: Path, options: TuneOptions) -> list[Candidate]:
    """Those here, those that were named, and those that a hub has."""
    named = [Entry(name, _drafter(name), "hub") for name in options.drafter or ()]
    fetched = published(path, _say) if options.fetch else ()
    return candidates(path, options.context_size, fetched, named)


def _drafter(name: str) -> Path:
    """Whoever names one wants it raced: what is no model is an error, not left out."""
    path = resolve_drafter(name, _say)
    read_facts(path)
    return path


def _check_out(out: Path) -> None:
    """Minutes later is too late to say so."""
    if not out.absolute().parent.is_dir():
        raise BadRequest(f"no folder {out.absolute().parent} for --out; make it first")
    if out.exists() and not race_files.is_ours(out):
        raise BadRequest(f"{out} was not written by parlay tune; choose another --out, or move it")


def _leave(
    tuner: Tuner, found: Outcome, path: Path, work: Workload, options: TuneOptions
) -> dict[str, Any]:
    """The deployment, the manifest's entry, and the submission if one is wanted."""
    target, out = options.target, options.out
    named = target if is_name(target) else str(path.absolute())
    about = race_files.about(target, work.suite.name, found)
    race_files.write_deployment(out, named, found, about)
    files: dict[str, Any] = {"deployment": str(out), "pair": None, "submission": None}
    if found.winner is None:
        return files
    best = found.rows[0]
    notes = f"parlay tune: {best.ratio:.2f}x [{best.low:.2f}, {best.high:.2f}] on {work.suite.name}"
    files["pair"] = race_files.write_pair(path, found.winner, notes).name
    if options.submit is not None:
        files["submission"] = _submit(tuner, found, path, options.submit)
    return files


def _submit(tuner: Tuner, found: Outcome, path: Path, name: str) -> str | None:
    assert found.winner is not None
    record = race_files.result(tuner, found.winner, path)
    if record is None:
        _say("no submission: not every prompt was asked; give more --minutes")
        return None
    problems = community.problems_of(record)
    for problem in problems:
        _say(f"no submission: {problem}")
    if problems:
        return None
    made = build(name, "parlay tune", [record])
    refuse_leaks(made, "this submission")
    write(Path(f"{name}.json"), dump(made))
    return f"{name}.json"


# -- what is shown ----------------------------------------------------------------------------


def _say(line: str) -> None:
    typer.echo(line, err=True)


@contextmanager
def _bar() -> Iterator[Any]:
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f} %"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("loading", total=1.0)

        def show(share: float, what: str) -> None:
            progress.update(task, completed=share, description=what[:48])

        yield show


def _show(found: Outcome, files: dict[str, Any]) -> None:
    out = Console(highlight=False)
    speed = found.plain_tokens_per_second
    out.print(
        f"plain decoding: {f'{speed:.1f} tok/s' if speed else 'not measured'};"
        f" {found.n_prompts} prompts, {found.n_tokens}"
        f" tokens, {found.spent_s:.0f} s"
    )
    out.print(_table(found.rows))
    out.print(_verdict(found), soft_wrap=True)
    for route, way in found.routes.items():
        out.print(f"  on route {route}: {'plain' if way is None else way.label}", markup=False)
    for what in ("deployment", "pair", "submission"):
        if files[what]:
            out.print(f"{what:10} {files[what]}", markup=False, soft_wrap=True)


def _verdict(found: Outcome) -> Text:
    best, late = found.rows[0], _late(found)
    if found.winner is not None:
        text = f"{found.winner.label} wins: {best.ratio:.2f}x{late}"
        return Text(text, style="bold green")
    unsure = best.ratio is not None and best.high is not None and best.ratio > 1 < best.high
    more = f" ({best.label} might: more --minutes would tell)" if unsure else ""
    text = f"nothing is sure to pay here: the deployment decodes plainly{more}{late}"
    return Text(text, style="bold yellow")


def _late(found: Outcome) -> str:
    """Who was not even tried may be faster than whoever was."""
    n = sum(row.state == TOO_LATE for row in found.rows)
    return f"; {n} of {len(found.rows)} were not raced: give more --minutes" if n else ""


def _table(rows: tuple[Row, ...]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("candidate", overflow="fold")
    for column in ("speed-up", "bounds", "pairs", "accepted", "MB", "same text"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("")
    for row in rows:
        table.add_row(*_cells(row))
    return table


def _cells(row: Row) -> list[Text]:
    if row.ratio is None or row.low is None or row.high is None:
        return [Text(row.label), *(Text("-") for _ in range(6)), Text(row.state, style="dim")]
    taken = "-" if row.token_acceptance is None else f"{row.token_acceptance:.0%}"
    cells = [
        row.label, f"{row.ratio:.2f}x", f"{row.low:.2f}-{row.high:.2f}", str(row.n_pairs), taken,
        f"{row.n_bytes / _MB:.0f}", f"{row.n_identical}/{row.n_compared}", row.state,
    ]  # fmt: skip
    style = "bold green" if row.state == "wins" else ""
    return [Text(cell, style=style) for cell in cells]
