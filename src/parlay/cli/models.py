"""`parlay pull`, `list` and `rm`: fetch a model by its name, see which are here, delete one.

Shows what `parlay.hub` finds. Only what Parlay fetched itself is ever removed.
"""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from parlay.cli.common import Json, described, say
from parlay.errors import BadRequest
from parlay.hub import fetching, place
from parlay.hub.card import cards, drafts_for, read_card
from parlay.hub.name import DefaultName, FileName, HubName, ShortName, parse_name
from parlay.hub.resolving import pull as fetch
from parlay.hub.resolving import resolve_model
from parlay.models import SHIPPED_DRAFTERS, default_file

EXAMPLE = """
Example: parlay pull bartowski/Qwen2.5-7B-Instruct-GGUF:Q4_K_M

Without a quantisation the largest that fits this machine is chosen, with room for a drafter and
the context. HF_TOKEN, HF_ENDPOINT, HF_HUB_CACHE and HF_HUB_OFFLINE act as everywhere.
"""


def register(app: typer.Typer) -> None:
    """Add the three verbs."""
    app.command("pull", help=described("Fetch a model by its name.", EXAMPLE))(pull)
    app.command("list", help=described("Which models are here.", "Example: parlay list --find"))(
        list_
    )
    removes = "Example: parlay rm bartowski/Qwen2.5-7B-Instruct-GGUF:Q4_K_M"
    app.command("rm", help=described("Delete a model that Parlay fetched.", removes))(remove)


def pull(
    name: Annotated[str, typer.Argument(help="default, org/repo:quant or hf:org/repo/file.gguf")],
    json_output: Json = False,
) -> None:
    """Fetch what is not here yet."""
    meant = parse_name(name)
    if isinstance(meant, FileName | ShortName):
        raise BadRequest(f"{name} is no name to fetch; write org/repo, org/repo:Q4_K_M or default")
    path = fetch(meant, say) if isinstance(meant, HubName) else resolve_model(name, say)
    if json_output:
        card = read_card(path)
        size = card.n_bytes if card else path.stat().st_size
        typer.echo(json.dumps({"name": name, "path": str(path), "bytes": size}))
    else:
        typer.echo(str(path))


def list_(
    find: Annotated[
        bool, typer.Option("--find", help="Also what llama.cpp, Ollama and LM Studio keep here.")
    ] = False,
    json_output: Json = False,
) -> None:
    """The default model and the hub's cache, or everything."""
    found = cards(place.everything() if find else [*place.own(), *place.hub_cache()])
    if json_output:
        typer.echo(json.dumps([card.as_dict(found) for card in found]))
        return
    if not found:
        typer.echo("no model is here yet; parlay pull default fetches a small one")
        return
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
    Console(highlight=False).print(table)
    if not find:
        say("parlay list --find also shows what other programs keep here")


def remove(
    name: Annotated[str, typer.Argument(help="As parlay list shows it.")],
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
        path = default_file()
        n_bytes = path.stat().st_size if path.is_file() else 0
        path.unlink(missing_ok=True)
        return n_bytes
    entries = [*place.hub_cache(), *place.llama_cache(), *place.ollama(), *place.lm_studio()]
    found = next((e.path for e in entries if name.lower() in e.aliases), None)
    if found is None:
        raise BadRequest(f"no model here is called {name}; parlay list shows them")
    if not fetching.is_ours(found):
        raise BadRequest(
            f"{name} was put there by another program and stays; remove it with that program"
            " (hf cache, ollama rm, LM Studio)"
        )
    return fetching.remove(found)
