"""`parlay pull`: fetch a model by its name into the hub's own cache.

Turns a name into a call of `parlay.hub`; shows what came of it.
"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from parlay.cli.options import Json
from parlay.errors import BadRequest
from parlay.hub.card import read_card
from parlay.hub.name import FileName, HubName, ShortName, parse_name
from parlay.hub.resolving import pull as fetch
from parlay.hub.resolving import resolve_model

EXAMPLE = """
Example: parlay pull bartowski/Qwen2.5-7B-Instruct-GGUF:Q4_K_M

Without a quantisation the largest that fits this machine is chosen, with room for a drafter and
the context. HF_TOKEN, HF_ENDPOINT, HF_HUB_CACHE and HF_HUB_OFFLINE act as everywhere.
"""


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("pull", help="Fetch a model by its name.", epilog=EXAMPLE)(pull)


def pull(
    name: Annotated[str, typer.Argument(help="default, org/repo:quant or hf:org/repo/file.gguf")],
    json_output: Json = False,
) -> None:
    """Fetch what is not here yet."""
    meant = parse_name(name)
    if isinstance(meant, FileName | ShortName):
        raise BadRequest(f"{name} is no name to fetch; write org/repo, org/repo:Q4_K_M or default")
    path = fetch(meant, _say) if isinstance(meant, HubName) else resolve_model(name, _say)
    if json_output:
        card = read_card(path)
        size = card.n_bytes if card else path.stat().st_size
        typer.echo(json.dumps({"name": name, "path": str(path), "bytes": size}))
    else:
        typer.echo(str(path))


def _say(line: str) -> None:
    typer.echo(line, err=True)
