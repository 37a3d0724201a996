"""`parlay report`: a result as a page and as a Markdown table.

Turns a file into files; knows nothing of what is in them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from parlay.errors import BadRequest
from parlay.results.markdown import markdown
from parlay.results.record import MAX_RECORD_BYTES, Record, parse
from parlay.results.report import report as html_page

EXAMPLE = """
Example: parlay report bench-results/1a2b3c4d-1

Writes report.html and report.md beside the result; --markdown prints the table only.
"""


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("report", help="A page and a table from a result.", epilog=EXAMPLE)(report)


def report(
    result: Annotated[Path, typer.Argument(help="A result.json, or the folder that holds it.")],
    out: Annotated[Path | None, typer.Option(help="Where the page goes.")] = None,
    only_markdown: Annotated[bool, typer.Option("--markdown", help="Print the table.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Say what was written.")] = False,
) -> None:
    """Write the pages."""
    path = result / "result.json" if result.is_dir() else result
    record = read_record(path)
    if only_markdown:
        typer.echo(markdown(record), nl=False)
        return
    page = out or path.with_name("report.html")
    table = page.with_suffix(".md")
    write(page, html_page(record))
    write(table, markdown(record))
    if json_output:
        typer.echo(json.dumps({"html": str(page), "markdown": str(table), "id": record.id}))
    else:
        typer.echo(f"{page}\n{table}")


def read_record(path: Path) -> Record:
    """A result from a file of bounded size."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_RECORD_BYTES + 1)
    except OSError as error:
        raise BadRequest(f"{path}: {error.strerror}; give a result.json or its folder") from error
    return parse(data, str(path))


def write(path: Path, text: str) -> None:
    """Write a page."""
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise BadRequest(f"cannot write {path}: {error.strerror}; use --out") from error
