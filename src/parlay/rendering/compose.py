"""A compose file for one machine.

Dollars are doubled, since compose would replace what follows them; secrets stay outside.
"""

from __future__ import annotations

import math
from pathlib import PurePosixPath
from typing import Any

import yaml

from parlay.rendering.launch import HEALTH, LaunchPlan, RenderError, Secret
from parlay.rendering.remarks import comment

_HUB_CACHE = "/root/.cache/huggingface"


def compose(plan: LaunchPlan) -> dict[str, str]:
    """`compose.yaml`."""
    if len(plan.commands) > 1:
        raise RenderError(
            "compose starts one machine; use --format kubernetes, systemd or ray for several"
        )
    content: dict[str, Any] = {"name": plan.name, "services": {plan.name: _service(plan)}}
    if not plan.folders:
        content["volumes"] = {"models": {}}
    files = {_secret_name(s): {"file": f"./{PurePosixPath(s.name).name}"} for s in _files(plan)}
    if files:
        content["secrets"] = files
    return {"compose.yaml": comment(plan) + yaml.safe_dump(content, sort_keys=False)}


def _service(plan: LaunchPlan) -> dict[str, Any]:
    argv = [literal(word) for word in plan.commands[0].argv]
    service: dict[str, Any] = {
        "image": plan.image,
        "entrypoint": argv[:1],
        "command": argv[1:],
        "ports": [f"{published(plan.host)}{plan.port}:{plan.port}"],
        "environment": _environment(plan),
        "volumes": _volumes(plan),
        "healthcheck": _healthcheck(plan),
        "stop_grace_period": f"{math.ceil(plan.drain_s) + 10}s",
        "restart": "unless-stopped",
    }
    if plan.gpus:
        service["ipc"] = "host"  # workers share tensors through it
        device = {"driver": "nvidia", "count": plan.gpus, "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    if files := _files(plan):
        service["secrets"] = [{"source": _secret_name(s), "target": s.name} for s in files]
    return {key: value for key, value in service.items() if value}


def literal(word: str) -> str:
    """Text that compose leaves as it is."""
    return word.replace("$", "$$")


def published(host: str) -> str:
    """The address part of a published port; all addresses need none."""
    if host in ("0.0.0.0", "::"):
        return ""
    return f"[{host}]:" if ":" in host else f"{host}:"


def _environment(plan: LaunchPlan) -> dict[str, str]:
    found = {name: literal(value) for name, value in sorted(plan.env.items())}
    for secret in plan.secrets:
        if not secret.is_file:
            found[secret.name] = f"${{{secret.name}:?set it to the API key}}"
    return found


def _volumes(plan: LaunchPlan) -> list[dict[str, Any]]:
    if not plan.folders:
        return [{"type": "volume", "source": "models", "target": _HUB_CACHE}]
    return [
        {"type": "bind", "source": literal(f), "target": literal(f), "read_only": True}
        for f in plan.folders
    ]


def _healthcheck(plan: LaunchPlan) -> dict[str, Any]:
    url = f"http://127.0.0.1:{plan.port}{HEALTH}"
    return {
        "test": ["CMD", "curl", "--fail", "--silent", "--max-time", "3", url],
        "interval": "10s",
        "timeout": "5s",
        "retries": 3,
        "start_period": "20m",
    }


def _files(plan: LaunchPlan) -> list[Secret]:
    return [secret for secret in plan.secrets if secret.is_file]


def _secret_name(secret: Secret) -> str:
    return PurePosixPath(secret.name).stem
