"""`parlay deploy render`: the same deployment on vLLM, llama-server or SGLang.

Prints commands or writes files; all of it is made in `parlay.rendering`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from parlay.cli.options import Json
from parlay.cli.settings import settings
from parlay.deployment import load_deployment
from parlay.errors import BadRequest
from parlay.rendering.render import ENGINES, FORMATS, Rendered, render

EXAMPLE = """
Example: parlay deploy render speculative-deploy.yaml --engine vllm --format kubernetes

Nothing is started. What the engine cannot do is listed in comments, and as `not_carried` in --json.
"""
_DEPLOY_HELP = "The same deployment on another engine."


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    deploy = typer.Typer(no_args_is_help=True, help=_DEPLOY_HELP)
    deploy.command("render", help="Launch commands or files.", epilog=EXAMPLE)(render_files)
    deploy.callback()(_deploy)
    app.add_typer(deploy, name="deploy")


def _deploy() -> None:
    """Keeps `render` a verb of its own while it is the only one."""


def render_files(
    deployment: Annotated[Path, typer.Argument(help="speculative-deploy.yaml")],
    engine: Annotated[str, typer.Option("--engine", "-e", help=", ".join(ENGINES))] = "vllm",
    form: Annotated[str, typer.Option("--format", "-f", help=", ".join(FORMATS))] = "command",
    out: Annotated[Path | None, typer.Option(help="Write the files into this folder.")] = None,
    set_key: Annotated[
        list[str] | None, typer.Option("--set", help="SECTION.KEY=VALUE; may be repeated.")
    ] = None,
    json_output: Json = False,
) -> None:
    """Render a deployment for an engine."""
    found = load_deployment(deployment, overrides=settings(set_key or []))
    made = render(found, engine, form)
    if out is not None:
        _write(made, out)
    if json_output:
        typer.echo(json.dumps({**made.plan.as_dict(), "format": form, "files": dict(made.files)}))
    elif out is not None:
        for name in made.files:
            typer.echo(str(out / name))
    else:
        _print(made)


def _write(made: Rendered, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in made.files.items():
            (folder / name).write_text(text, "utf-8")
    except OSError as error:
        raise BadRequest(f"cannot write to {folder}: {error.strerror}; name another") from None


def _print(made: Rendered) -> None:
    for name, text in made.files.items():
        if len(made.files) > 1:
            typer.echo(f"# ---- {name}")
        typer.echo(text, nl=False)
