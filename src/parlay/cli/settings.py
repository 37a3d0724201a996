"""`--set SECTION.KEY=VALUE`: keys of the deployment file, given on the command line.

Knows YAML values; which keys there are is the deployment's affair.
"""

from __future__ import annotations

from typing import Any

import yaml

from parlay.deployment import DeploymentError, read_yaml


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
