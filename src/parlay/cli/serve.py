"""`parlay serve`: a model over HTTP as OpenAI and Anthropic do; whether it would start; its files.

Turns options into overrides of the deployment; knows nothing of models.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from parlay.cli.common import (
    ContextSize,
    Draft,
    GpuLayers,
    Json,
    Model,
    Set,
    Threads,
    deployment_of,
    described,
    keys,
    settings,
)
from parlay.deployment import KEPT_NAMES, Deployment, DeploymentError
from parlay.errors import BadRequest, ModelFileError, ModelUnavailable, ParlayError
from parlay.llama import engines

EXAMPLE = """
Example: parlay serve bartowski/Qwen2.5-7B-Instruct-GGUF:Q4_K_M

Example: parlay serve speculative-deploy.yaml --port 8080 --set runtime.slots=8

Example: parlay serve speculative-deploy.yaml --render systemd

Without either: the default model on 127.0.0.1:8080. Every key can also be set by a variable such
as PARLAY_RUNTIME_SLOTS. SIGTERM drains, SIGHUP reads the file again. --render: command, compose,
kubernetes or systemd, and for another engine vllm, sglang or llama-server, such as vllm:compose.
"""
Read = Callable[[], Deployment]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("serve", help=described("Serve a model over HTTP.", EXAMPLE))(serve)


def serve(
    what: Annotated[
        str | None,
        typer.Argument(metavar="[DEPLOYMENT|MODEL]", help="speculative-deploy.yaml, or a model."),
    ] = None,
    model: Model = None,
    host: Annotated[str | None, typer.Option(help="Default: 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="0: any free one.")] = None,
    slots: Annotated[int | None, typer.Option(min=1, help="Answers made at once.")] = None,
    draft: Draft = None,
    window: Annotated[int | None, typer.Option("--window", "-k", min=0)] = None,
    context_size: ContextSize = None,
    gpu_layers: GpuLayers = None,
    threads: Threads = None,
    api_keys_file: Annotated[Path | None, typer.Option(help="One key a line.")] = None,
    allow_public_without_key: Annotated[
        bool, typer.Option("--allow-public-without-key", help="Serve strangers, knowingly.")
    ] = False,
    request_log: Annotated[Path | None, typer.Option(help="JSON lines, one a request.")] = None,
    set_key: Set = None,
    check: Annotated[bool, typer.Option("--check", help="Would it start? Then exit.")] = False,
    render: Annotated[
        str | None, typer.Option(help="Write files for it instead, of this kind.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for these files.")] = None,
    json_output: Json = False,
) -> None:
    """Serve a model."""
    file = deployment_file(what)
    if what is not None and file is None and model is not None:
        raise DeploymentError(f"two models, {what} and {model}; name one")
    given = keys(
        model=model if what is None or file is not None else what,
        draft=draft,
        window=window,
        server__host=host,
        server__port=port,
        slots=slots,
        context_size=context_size,
        threads=threads,
        gpu_layers=gpu_layers,
        server__api_keys_file=api_keys_file,
        server__allow_public_without_key=allow_public_without_key or None,
        monitoring__request_log=request_log,
    ) | settings(set_key)

    def read() -> Deployment:
        return deployment_of(given, file)

    if render is not None:
        _render(read(), render, out, json_output)
    elif check:
        _check(read(), json_output)
    else:
        _serve(read, json_output)


def deployment_file(what: str | None) -> Path | None:
    """A deployment by its ending, or a file that is no model; None: a model, or nothing."""
    if what is None:
        return None
    path = Path(what)
    if path.suffix.lower() in (".yaml", ".yml"):
        return path
    if not path.is_file() or path.suffix.lower() == ".gguf":
        return None
    with path.open("rb") as file:
        return None if file.read(4) == b"GGUF" else path


def _serve(read: Read, json_output: bool) -> None:
    from parlay.front.life import Life
    from parlay.front.service import Service

    # What happens to a server while nobody looks must be in its log.
    for name in ("parlay.server", "parlay.alerts"):
        logging.getLogger(name).setLevel(logging.WARNING)
    if line := engines.hint():
        logging.getLogger("parlay.chosen").info(line)

    def ready(service: Service, port: int) -> None:
        url, facts = _url(service.deployment, port), service.backend.facts
        if json_output:
            typer.echo(json.dumps({"url": url, "model": service.model_names[0]}))
        else:
            typer.echo(f"{service.model_names[0]} is served at {url} (mode {facts.mode})")

    if status := Life(read, ready).run():
        raise typer.Exit(status)


def _url(deployment: Deployment, port: int) -> str:
    host = deployment.server.host
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}/v1"


# -- without serving --------------------------------------------------------------------------


def _render(deployment: Deployment, kind: str, out: Path | None, json_output: bool) -> None:
    """Files for where it is to run; printed, unless a folder is given."""
    from parlay.rendering.files import render

    files = render(deployment, kind)
    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
            for name, text in files.items():
                (out / name).write_text(text, "utf-8")
        except OSError as error:
            raise BadRequest(f"cannot write to {out}: {error.strerror}; name another") from None
    if json_output:
        typer.echo(json.dumps({"files": files}))
    else:
        for name, text in files.items():
            typer.echo(str(out / name) if out is not None else text, nl=out is not None)


def _check(deployment: Deployment, json_output: bool) -> None:
    """Whether this deployment could start: files, keys, bind address, memory."""
    from parlay.backend import opening
    from parlay.front.gate import checked_keys
    from parlay.front.remote.server import key_headers
    from parlay.front.request_log import check_log

    problem = None
    try:
        checked_keys(deployment)
        check_log(deployment.monitoring)
        for pool in deployment.upstreams:
            key_headers(pool)
        if deployment.engine == "local":
            _refuse_missing(deployment)
            opening.check_files(deployment)
            deployment = opening.with_fit(opening.with_known_drafter(deployment))
            opening.check_memory(deployment)
            for path in opening.drafter_paths(deployment):
                _check_drafter(path)
    except ParlayError as error:
        problem = error.message
    if json_output:
        typer.echo(json.dumps({"ok": problem is None, "problem": problem}))
    else:
        typer.echo(problem or "the deployment can be served", err=problem is not None)
    if problem is not None:
        raise typer.Exit(1)


def _check_drafter(path: Path) -> None:
    """A server that has one begins without it, and decodes plainly: here it is told before."""
    from parlay.llama.facts import read_facts

    if not path.is_file():
        raise DeploymentError(f"model.drafter: no file at {path}; the server would decode plainly")
    try:
        read_facts(path)
    except ModelFileError as error:
        raise DeploymentError(f"model.drafter: {error.message}") from None


def _refuse_missing(deployment: Deployment) -> None:
    """A check fetches nothing."""
    from parlay.hub.resolving import missing_model
    from parlay.routing import parse_draft

    for name in (deployment.model.target, *parse_draft(deployment.model.drafter)):
        if name not in KEPT_NAMES and (missing := missing_model(name)) is not None:
            raise ModelUnavailable(f"{missing} is not on this machine; parlay pull {missing}")
