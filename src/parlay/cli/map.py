"""`parlay map`: the community's results as one page.

Turns a folder into a file; what cannot be believed is left out and named.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from parlay.cli.options import Json
from parlay.cli.report import write
from parlay.errors import BadRequest
from parlay.results import community, reported
from parlay.results.map import community_map

EXAMPLE = """
Example: parlay map community --out map.html

The page needs no network. Exit code 1: a submission was refused and left out.
"""


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("map", help="Where speculation helps: a page.", epilog=EXAMPLE)(build_map)


def build_map(
    folder: Annotated[Path, typer.Argument(help="Folder of submissions.")] = Path("community"),
    out: Annotated[Path, typer.Option(help="The page.")] = Path("map.html"),
    json_output: Json = False,
) -> None:
    """Build the page."""
    if not folder.is_dir():
        raise BadRequest(f"{folder} is not a folder; give one that holds submissions")
    verdicts = community.validate(folder)
    shown = [v.submission for v in verdicts if v.submission is not None and not v.problems]
    refused = {v.file: list(v.problems) for v in verdicts if v.problems}
    write(out, community_map(shown, reported.load()))
    if json_output:
        typer.echo(json.dumps({"map": str(out), "submissions": len(shown), "refused": refused}))
    else:
        for name, problems in refused.items():
            typer.echo(f"left out  {name}: {'; '.join(problems)}", err=True)
        typer.echo(f"{out}: {len(shown)} submission(s)")
    if refused:
        raise typer.Exit(1)
