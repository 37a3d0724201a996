"""`--set SECTION.KEY=VALUE`: keys of the deployment file, given on the command line.

Knows YAML values; which keys there are is the deployment's affair.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import yaml

from parlay.deployment import DeploymentError, load_deployment, read_yaml
from parlay.engine.startup.load_settings import LoadSettings


def settings(given: list[str]) -> dict[str, Any]:
    """Values by dotted key."""
    found: dict[str, Any] = {}
    for item in given:
        key, equals, value = item.partition("=")
        if not equals:
            raise DeploymentError(f"--set {item!r} is not SECTION.KEY=VALUE; try runtime.slots=8")
        try:
            found[key.strip()] = read_yaml(value)
        except yaml.YAMLError:
            raise DeploymentError(f"--set {key}: the value is not YAML; quote it") from None
    return found


def loading(given: list[str] | None) -> dict[str, Any]:
    """`--set` as keywords of `Parlay`: those keys of the deployment that say how models run."""
    keys = settings(given or [])
    runtime = load_deployment(environ={}, overrides=keys).runtime
    names = {field.name for field in fields(LoadSettings)} & type(runtime).model_fields.keys()
    told = {name: getattr(runtime, name) for name in names if f"runtime.{name}" in keys}
    if strange := [key for key in keys if key.removeprefix("runtime.") not in told]:
        raise DeploymentError(f"--set {strange[0]} says nothing about how a model runs here")
    return {
        name: None if (name, value) == ("mode", "auto") else value for name, value in told.items()
    }
