"""`parlay submit`: results as one file for the community's folder; `--check` validates a folder.

Shows what will be public before it is; sends nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from parlay.cli.options import Json
from parlay.cli.report import read_record, write
from parlay.errors import BadRequest
from parlay.results import community
from parlay.results.record import BadResult, dump
from parlay.results.submission import build, preview, refuse_leaks

EXAMPLE = """
Example: parlay submit bench-results/1a2b3c4d-1 --name rtx4090-ryzen7950x --notes "undervolted"

Nothing is sent: the file is yours to look at, and CONTRIBUTING.md says how to send it.
By sending it you license it under CC BY 4.0. Exit code 1: the result cannot be believed.
"""


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("submit", help="Prepare results for the community's map.", epilog=EXAMPLE)(submit)


def submit(
    results: Annotated[list[Path], typer.Argument(help="result.json files or their folders.")],
    name: Annotated[str, typer.Option(help="Such as rtx4090-ryzen7950x.")] = "",
    notes: Annotated[str, typer.Option(help="What others should know.")] = "",
    out: Annotated[Path | None, typer.Option(help="Default: NAME.json here.")] = None,
    check: Annotated[bool, typer.Option(help="Validate a folder of submissions.")] = False,
    json_output: Json = False,
) -> None:
    """Build one file, or check a folder."""
    if check:
        _check(results, json_output)
        return
    if not name:
        raise BadRequest("give the submission a --name, such as rtx4090-ryzen7950x")
    records = [read_record(p / "result.json" if p.is_dir() else p) for p in results]
    made = build(name, notes, records)
    try:
        refuse_leaks(made, "this submission")
    except BadResult as error:
        raise BadRequest(error.message) from error
    problems = [p for record in records for p in community.problems_of(record)]
    path = out or Path(f"{name}.json")
    if not problems:
        write(path, dump(made))
    if json_output:
        answer = {"file": None if problems else str(path), "problems": problems}
        typer.echo(json.dumps(answer))
    else:
        _show(preview(made), problems, path)
    if problems:
        raise typer.Exit(1)


def _show(lines: list[str], problems: list[str], path: Path) -> None:
    for line in lines:
        typer.echo(line)
    for problem in problems:
        typer.echo(f"refused   {problem}")
    if not problems:
        typer.echo(f"written   {path}: look at it, then send it as CONTRIBUTING.md says")


def _check(folders: list[Path], json_output: bool) -> None:
    found = {}
    for folder in folders:
        if not folder.is_dir():
            raise BadRequest(f"{folder} is not a folder; --check takes folders of submissions")
        for verdict in community.validate(folder):
            found[verdict.file] = list(verdict.problems)
    if json_output:
        typer.echo(json.dumps(found))
    else:
        for name, problems in found.items():
            typer.echo(f"{name}: {'; '.join(problems) or 'fine'}")
        typer.echo(f"{len(found)} submission(s), {sum(map(bool, found.values()))} refused")
    if any(found.values()):
        raise typer.Exit(1)
