"""`parlay serve`: the OpenAI-compatible server.

Turns options into overrides of the deployment; knows nothing of models.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parlay.cli.machine_options import (
    NO_MACHINE_OPTIONS,
    MachineOptions,
)
from parlay.cli.option_groups import with_groups
from parlay.cli.settings import settings
from parlay.deployment import KEPT_NAMES, Deployment, DeploymentError, load_deployment
from parlay.errors import ModelFileError, ModelUnavailable, ParlayError
from parlay.llama import engines

if TYPE_CHECKING:
    from parlay.web.supervised import Supervised

EXAMPLE = """
Example: parlay serve speculative-deploy.yaml --port 8080 --set runtime.slots=8

Example: parlay serve bartowski/Qwen2.5-7B-Instruct-GGUF:Q4_K_M

Without either: the default model on 127.0.0.1:8080. Every key can also be set by a variable such
as PARLAY_RUNTIME_SLOTS. SIGTERM drains, SIGHUP reads the file again.
"""


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("serve", help="Serve a model over HTTP as OpenAI does.", epilog=EXAMPLE)(
        with_groups(serve)
    )


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What was said of the deployment; None and empty: nothing was."""

    what: Annotated[
        str | None,
        typer.Argument(metavar="[DEPLOYMENT|MODEL]", help="speculative-deploy.yaml, or a model."),
    ] = None
    model: Annotated[str | None, typer.Option("--model", "-m", help="File or name.")] = None
    draft: Annotated[
        list[str] | None, typer.Option(help="none, suffix, PATH; may be repeated.")
    ] = None
    window: Annotated[int | None, typer.Option("--window", "-k", min=0)] = None
    host: Annotated[str | None, typer.Option(help="Default: 127.0.0.1.")] = None
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="0: any free one.")] = None
    slots: Annotated[int | None, typer.Option(min=1, help="Answers made at once.")] = None
    context_size: Annotated[
        str | None, typer.Option("--context-size", "-c", help="Of each slot; auto: what fits.")
    ] = None
    threads: Annotated[int | None, typer.Option(min=0)] = None
    gpu_layers: Annotated[
        str | None, typer.Option(help="-1: all, if there is a GPU; auto: as many as fit.")
    ] = None
    api_keys_file: Annotated[Path | None, typer.Option(help="One key a line.")] = None
    allow_public_without_key: Annotated[
        bool, typer.Option("--allow-public-without-key", help="Serve strangers, knowingly.")
    ] = False
    request_log: Annotated[Path | None, typer.Option(help="JSON lines, one a request.")] = None
    set_key: Annotated[
        list[str] | None, typer.Option("--set", help="SECTION.KEY=VALUE; may be repeated.")
    ] = None

    def keys(self, target: str | None) -> dict[str, Any]:
        """As the deployment names them."""
        log, keys = self.request_log, self.api_keys_file
        return {
            "model.target": target,
            "model.drafter": ",".join(self.draft) if self.draft else None,
            "runtime.speculative_window": self.window,
            "runtime.controller": None if self.window is None else "fixed",  # a command is kept to
            "server.host": self.host,
            "server.port": self.port,
            "runtime.slots": self.slots,
            "runtime.context_size": self.context_size,
            "runtime.threads": self.threads,
            "runtime.gpu_layers": self.gpu_layers,
            "server.api_keys_file": None if keys is None else str(keys),
            "server.allow_public_without_key": self.allow_public_without_key or None,
            "monitoring.request_log": None if log is None else str(log),
        }


NO_SERVE_OPTIONS = ServeOptions()


def serve(
    options: ServeOptions = NO_SERVE_OPTIONS,
    check: Annotated[bool, typer.Option("--check", help="Validate and exit.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON object at start.")] = False,
    machine: MachineOptions = NO_MACHINE_OPTIONS,
) -> None:
    """Serve a model."""
    what, model = options.what, options.model
    deployment = deployment_file(what)
    if what is not None and deployment is None and model is not None:
        raise DeploymentError(f"two models, {what} and {model}; name one")
    target = model if what is None or deployment is not None else what
    given = {**options.keys(target), **machine.keys()}
    overrides = {key: value for key, value in given.items() if value is not None}
    overrides |= settings(options.set_key or [])

    def read() -> Deployment:
        return load_deployment(deployment, overrides=overrides)

    if check:
        _check(read(), json_output)
        return
    _serve(read, json_output)


def deployment_file(what: str | None) -> Path | None:
    """A deployment by its ending, or a file that is no model; None: a model, or nothing."""
    if what is None:
        return None
    path = Path(what)
    is_file = path.is_file() and path.suffix.lower() != ".gguf" and not _is_gguf(path)
    return path if path.suffix.lower() in (".yaml", ".yml") or is_file else None


def _is_gguf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"GGUF"


def _serve(read: Any, json_output: bool) -> None:
    if read().engine == "endpoints":
        _serve_gateway(read, json_output)
        return
    from parlay.web.supervised import Supervised

    # What happens to a server while nobody looks must be in its log.
    for name in ("parlay.server", "parlay.alerts", "parlay.engine"):
        logging.getLogger(name).setLevel(logging.WARNING)
    supervised = Supervised.here()
    if supervised is None and (line := engines.hint()):
        logging.getLogger("parlay.chosen").info(line)
    if supervised is None and read().server.max_restarts:
        from parlay.web.supervisor import Supervisor  # which loads nothing of a server

        raise typer.Exit(Supervisor(read).run())
    _serve_here(read, json_output, supervised)


def _serve_here(read: Any, json_output: bool, supervised: Supervised | None) -> None:
    from parlay.server.lifecycle.heap import share_heap
    from parlay.server.lifecycle.process import Process
    from parlay.server.lifecycle.service import Service

    share_heap()

    def ready(service: Service, port: int) -> None:
        if supervised is not None and supervised.n_deaths:
            return  # it was said before the first death
        url = _url(service.deployment, port)
        if json_output:
            typer.echo(json.dumps({"url": url, "model": service.model_name}))
        else:
            typer.echo(f"{service.model_name} is served at {url} (mode {service.engine.mode})")

    Process(read, ready, supervised).run()


def _serve_gateway(read: Any, json_output: bool) -> None:
    from parlay.gateway.process import GatewayProcess
    from parlay.gateway.service import Gateway

    for name in ("parlay.server", "parlay.alerts", "parlay.gateway"):
        logging.getLogger(name).setLevel(logging.WARNING)

    def ready(gateway: Gateway, port: int) -> None:
        url, n = _url(gateway.deployment, port), len(gateway.pools.all)
        if json_output:
            typer.echo(json.dumps({"url": url, "servers": n}))
        else:
            typer.echo(f"{n} servers are asked through {url}")

    GatewayProcess(read, ready).run()


def _url(deployment: Deployment, port: int) -> str:
    host = deployment.server.host
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}/v1"


def _check(deployment: Deployment, json_output: bool) -> None:
    """Whether this deployment could start: files, keys, bind address, memory."""
    from parlay.front.remote.server import key_headers
    from parlay.server.lifecycle.engine_start import (
        check_files,
        check_memory,
        drafter_paths,
        with_fit,
        with_known_drafter,
    )
    from parlay.web.request_log import check_log
    from parlay.web.security import checked_keys

    problem = None
    try:
        checked_keys(deployment)
        check_log(deployment.monitoring)
        for pool in deployment.upstreams:
            key_headers(pool)
        if deployment.engine == "local":
            _refuse_missing(deployment)
            check_files(deployment)
            deployment = with_fit(with_known_drafter(deployment))
            check_memory(deployment)
            _check_drafters(drafter_paths(deployment))
    except ParlayError as error:
        problem = error.message
    if json_output:
        typer.echo(json.dumps({"ok": problem is None, "problem": problem}))
    else:
        typer.echo(problem or "the deployment can be served", err=problem is not None)
    if problem is not None:
        raise typer.Exit(1)


def _check_drafters(paths: Iterable[Path]) -> None:
    """A server that has one begins without it, and decodes plainly: here it is told before."""
    from parlay.llama.facts import read_facts

    for path in paths:
        if not path.is_file():
            raise DeploymentError(
                f"model.drafter: no file at {path}; the server would decode plainly"
            )
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
