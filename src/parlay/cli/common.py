"""What several verbs share: options of one meaning, and the deployment that they add up to.

Knows typer and the deployment's keys; what a verb does with them is its own business.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from parlay.deployment import Deployment, DeploymentError, load_deployment, read_yaml

Json = Annotated[bool, typer.Option("--json", help="One JSON object.")]
Model = Annotated[str | None, typer.Option("--model", "-m", help="GGUF file or name.")]
Draft = Annotated[
    list[str] | None,
    typer.Option(help="auto, none, suffix, default or PATH; may be repeated.", show_default="auto"),
]
ContextSize = Annotated[
    str | None, typer.Option("--context-size", "-c", help="Tokens; auto: what fits.")
]
GpuLayers = Annotated[str | None, typer.Option(help="-1: all, if there is a GPU; auto: what fits.")]
Threads = Annotated[int | None, typer.Option(min=0, help="0: physical cores.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", help="SECTION.KEY=VALUE of a deployment; may repeat.")
]


def settings(given: list[str] | None) -> dict[str, Any]:
    """`--set`: values by dotted key."""
    found: dict[str, Any] = {}
    for item in given or []:
        key, equals, value = item.partition("=")
        if not equals:
            raise DeploymentError(f"--set {item!r} is not SECTION.KEY=VALUE; try runtime.slots=8")
        try:
            found[key.strip()] = read_yaml(value)
        except yaml.YAMLError:
            raise DeploymentError(f"--set {key}: the value is not YAML; quote it") from None
    return found


def keys(
    *,
    model: str | None = None,
    draft: list[str] | None = None,
    window: int | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Options by the keys of the deployment; those that were not given are left out. `more`: keys
    of `runtime`, or with two underscores of another section."""
    given = {
        "model.target": model,
        "model.drafter": ",".join(draft) if draft else None,
        "runtime.speculative_window": window,
        "runtime.controller": None if window is None else "fixed",  # a command is kept to
        **{
            name.replace("__", ".") if "__" in name else f"runtime.{name}": value
            for name, value in more.items()
        },
    }
    return {
        key: str(value) if isinstance(value, Path) else value
        for key, value in given.items()
        if value is not None
    }


def deployment_of(given: dict[str, Any], path: Path | None = None) -> Deployment:
    """A deployment file, variables, and what was said on the command line."""
    return load_deployment(path, overrides=given)


def loading(deployment: Deployment) -> dict[str, Any]:
    """As keywords of `Parlay`: one answer at a time, unless slots were named."""
    runtime = deployment.runtime
    told = runtime.loading() | {
        "target": deployment.model.target,
        "draft": deployment.model.drafter,
        "lora": deployment.model.lora,
        "window": None if runtime.adaptive else runtime.fixed_window,
    }
    if runtime.remember_tokens is not None:
        told["remember_tokens"] = runtime.remember_tokens
    if "slots" not in runtime.model_fields_set:
        told["slots"] = 1
    return told


def say(line: str) -> None:
    """To standard error: what is told beside the answer."""
    typer.echo(line, err=True)


def described(line: str, examples: str) -> str:
    """A verb's help: what it does, what people type, then what else there is to know."""
    parts = [part.strip() for part in examples.strip().split("\n\n")]
    typed = [p.removeprefix("Example: ") for p in parts if p.startswith("Example: ")]
    notes = [part for part in parts if not part.startswith("Example: ")]
    return "\n\n".join([line, "\b\n" + "\n".join(f"  {each}" for each in typed), *notes])
