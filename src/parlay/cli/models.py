"""`parlay models`: which models are here, whose they are, what they could draft for; remove one.

Shows what `parlay.hub` finds. Only what Parlay fetched itself is ever removed.
"""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from parlay.cli.options import Json
from parlay.errors import BadRequest
from parlay.hub import fetching, place
from parlay.hub.card import Card, cards, drafts_for
from parlay.hub.name import DefaultName, parse_name
from parlay.models import SHIPPED_DRAFTERS, default_file

EXAMPLE = """
Example: parlay models --find
"""


def register(app: typer.Typer) -> None:
    """Add the verb and its parts."""
    verbs = typer.Typer(invoke_without_command=True, help="Which models are here.", epilog=EXAMPLE)
    verbs.callback()(models)
    verbs.command(
        "remove",
        help="Delete a model that Parlay fetched.",
        epilog="Example: parlay models remove bartowski/Qwen2.5-7B-Instruct-GGUF:Q4_K_M",
    )(remove)
    app.add_typer(verbs, name="models")


def models(
    context: typer.Context,
    find: Annotated[
        bool, typer.Option("--find", help="Also what llama.cpp, Ollama and LM Studio keep here.")
    ] = False,
    json_output: Json = False,
) -> None:
    """List models: the default one and the hub's cache, or everything."""
    if context.invoked_subcommand is not None:
        return
    found = cards(place.everything() if find else [*place.own(), *place.hub_cache()])
    if json_output:
        typer.echo(json.dumps([card.as_dict(found) for card in found]))
        return
    if not found:
        typer.echo("no model is here yet; parlay pull default fetches a small one")
        return
    Console(highlight=False).print(_table(found))
    if not find:
        typer.echo("parlay models --find also shows what other programs keep here", err=True)


def _table(found: list[Card]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("name", "from", "architecture", "quantisation"):
        table.add_column(column, overflow="fold")
    table.add_column("GB", justify="right")
    table.add_column("could draft for", overflow="fold")
    for card in found:
        says, targets = card.says, ", ".join(t.entry.name for t in drafts_for(card, found))
        kind = says.architecture if says.kind == "model" else f"{says.kind} drafter"
        size = f"{says.n_bytes / 1e9:.2f}"
        table.add_row(card.entry.name, card.entry.program, kind, says.quantisation, size, targets)
    return table


def remove(
    name: Annotated[str, typer.Argument(help="As parlay models shows it.")],
    json_output: Json = False,
) -> None:
    """Delete a model's files, if Parlay fetched them."""
    n_bytes = _remove(name)
    if json_output:
        typer.echo(json.dumps({"removed": name, "bytes": n_bytes}))
    else:
        typer.echo(f"removed {name}: {n_bytes / 1e9:.2f} GB")


def _remove(name: str) -> int:
    if name in SHIPPED_DRAFTERS and name != "default":
        raise BadRequest(f"{name} comes with the package and stays")
    if isinstance(parse_name(name), DefaultName):
        return _remove_default()
    entries = [*place.hub_cache(), *place.llama_cache(), *place.ollama(), *place.lm_studio()]
    path = next((e.path for e in entries if name.lower() in e.aliases), None)
    if path is None:
        raise BadRequest(f"no model here is called {name}; parlay models lists them")
    if not fetching.is_ours(path):
        raise BadRequest(
            f"{name} was put there by another program and stays; remove it with that program"
            " (hf cache, ollama rm, LM Studio)"
        )
    return fetching.remove(path)


def _remove_default() -> int:
    path = default_file()
    n_bytes = path.stat().st_size if path.is_file() else 0
    path.unlink(missing_ok=True)
    return n_bytes
