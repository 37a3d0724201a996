"""A launch as files: a shell script, a compose file, Kubernetes manifests, a systemd unit.

Knows formats and how each is quoted; knows no engine's flags. Keys are asked for, never written.
"""

from __future__ import annotations

import ipaddress
import math
import shlex
from collections.abc import Callable
from typing import Any

import yaml

from parlay.deployment import Deployment
from parlay.rendering.engines import Launch, RenderError, launch, set_in_file

HEALTH = "/health"  # of all engines
_HUB_CACHE = "/root/.cache/huggingface"
_WIDTH = 96
_SYSTEMD = {"\\": "\\\\", '"': '\\"', "%": "%%"}


def render(deployment: Deployment, kind: str) -> dict[str, str]:
    """Files by name. `kind`: ENGINE:FORMAT, or one of both."""
    engine, _, form = kind.partition(":")
    if engine in FORMATS and not form:
        engine, form = "parlay", engine
    if (form or "command") not in FORMATS:
        raise RenderError(f"no format {form!r}; known: {', '.join(FORMATS)}")
    if form in ("compose", "kubernetes"):  # a container sees other addresses than a shell does
        server = deployment.server.model_copy(update={"host": "0.0.0.0"})
        server.model_fields_set.add("host")
        deployment = deployment.model_copy(update={"server": server})
        deployment.model_fields_set.add("server")
    made = launch(engine, deployment)
    _check_door(made)
    return FORMATS[form or "command"](made)


def _check_door(made: Launch) -> None:
    """As our own server: no public address without a key."""
    server = made.deployment.server
    asks = made.secret or server.api_keys or server.api_keys_file
    try:
        local = ipaddress.ip_address(server.host).is_loopback
    except ValueError:
        local = server.host == "localhost"
    if not (asks or local or server.allow_public_without_key):
        raise RenderError(
            f"{server.host} is public and there is no key; set server.api_keys_file, or"
            " server.allow_public_without_key: true"
        )


def comment(made: Launch) -> str:
    """What heads every file: what is needed, and what is not carried over. A line each, whatever
    is said: a comment must not be able to end early."""
    lines = [f"{made.name} on {made.engine}"]
    if made.secret:
        lines.append(f"needs: the API key in the variable {made.secret}")
    lines += [f"note: {note}" for note in made.notes]
    told = {key: set_in_file(made.deployment, key) for key in made.left}
    lines += [f"not carried over: {key}: {made.left[key]}" for key, given in told.items() if given]
    others = [key for key, given in told.items() if not given]
    if others:
        lines.append(f"not carried over, and not set in the file: {', '.join(others)}")
    return "".join(f"# {' '.join(line.split())}\n" for line in lines)


def script(made: Launch) -> dict[str, str]:
    """A shell script that stops where the key is missing."""
    lines: list[str] = []
    for word in made.argv:
        quoted = f'"{word}"' if made.secret and word == f"${made.secret}" else shlex.quote(word)
        if lines and not word.startswith("--") and len(lines[-1]) + len(quoted) < _WIDTH:
            lines[-1] += f" {quoted}"
        else:
            lines.append(quoted)
    demand = f': "${{{made.secret}:?set it to the API key}}"; export {made.secret}\n'
    text = "#!/bin/sh\n" + comment(made) + "set -eu\n" + (demand if made.secret else "")
    return {f"{made.name}.sh": text + "exec " + " \\\n  ".join(lines) + "\n"}


def systemd(made: Launch) -> dict[str, str]:
    """A unit. Percent signs and dollars would be replaced; env finds the program."""

    def quoted(word: str) -> str:
        return '"' + "".join(_SYSTEMD.get(c, c) for c in word) + '"'

    plain = [
        w if made.secret and w == f"${made.secret}" else w.replace("$", "$$") for w in made.argv
    ]
    secret = [f"EnvironmentFile=/etc/parlay/{made.name}.env"] if made.secret else []
    lines = [
        "[Unit]",
        f"Description={made.name} on {made.engine}",
        "After=network-online.target",
        "Wants=network-online.target",
        "",
        "[Service]",
        "Type=exec",
        *secret,
        f"ExecStart={' '.join(['/usr/bin/env', *map(quoted, plain)])}",
        "Restart=on-failure",
        "RestartSec=5",
        f"TimeoutStopSec={_grace_s(made)}",
        "NoNewPrivileges=true",
        "PrivateTmp=true",
        "",
        "[Install]",
        "WantedBy=multi-user.target",
        "",
    ]
    return {f"{made.name}.service": comment(made) + "\n".join(lines)}


def _grace_s(made: Launch) -> int:
    return math.ceil(made.deployment.server.drain_s) + 10


def compose(made: Launch) -> dict[str, str]:
    """A compose file for one machine. Dollars are doubled, or what follows would be replaced."""
    port = made.deployment.server.port

    def literal(word: str) -> str:
        return word if made.secret and word == f"${made.secret}" else word.replace("$", "$$")

    url = f"http://127.0.0.1:{port}{HEALTH}"
    probe = ["CMD", "curl", "--fail", "--silent", "--max-time", "3", url]
    service: dict[str, Any] = {
        "image": made.image,
        "entrypoint": made.argv[:1],
        "command": [literal(word) for word in made.argv[1:]],
        "ports": [f"{port}:{port}"],
        "healthcheck": {"test": probe, "interval": "10s", "retries": 3, "start_period": "20m"},
        "stop_grace_period": f"{_grace_s(made)}s",
        "restart": "unless-stopped",
        "volumes": [
            {"type": "bind", "source": literal(f), "target": literal(f), "read_only": True}
            for f in made.folders
        ]
        or [{"type": "volume", "source": "models", "target": _HUB_CACHE}],
    }
    if made.secret:
        service["environment"] = {made.secret: f"${{{made.secret}:?set it to the API key}}"}
    if made.gpus:
        device = {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    content: dict[str, Any] = {"name": made.name, "services": {made.name: service}}
    if not made.folders:
        content["volumes"] = {"models": {}}
    return {"compose.yaml": comment(made) + yaml.safe_dump(content, sort_keys=False)}


def kubernetes(made: Launch) -> dict[str, str]:
    """A Deployment and its Service. Keys are taken from a Secret that must exist."""
    port, labels = made.deployment.server.port, {"app.kubernetes.io/name": made.name}

    def literal(word: str) -> str:
        if made.secret and word == f"${made.secret}":
            return f"$({made.secret})"
        return word.replace("$(", "$$(")

    argv = [literal(word) for word in made.argv]
    get = {"httpGet": {"path": HEALTH, "port": port}, "periodSeconds": 10, "timeoutSeconds": 5}
    container: dict[str, Any] = {
        "name": "engine",
        "image": made.image,
        "command": argv[:1],
        "args": argv[1:],
        "ports": [{"name": "http", "containerPort": port}],
        "startupProbe": {**get, "failureThreshold": 180},  # half an hour to load
        "readinessProbe": {**get, "failureThreshold": 1},
        "livenessProbe": {**get, "failureThreshold": 6},
        "securityContext": {"allowPrivilegeEscalation": False},
    }
    if made.gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": 1}}
    places = {f"models-{i}": folder for i, folder in enumerate(made.folders)}
    container["volumeMounts"] = [
        {"name": n, "mountPath": at, "readOnly": True} for n, at in places.items()
    ] or [{"name": "models", "mountPath": _HUB_CACHE}]
    how = ""
    if made.secret:
        reference = {"secretKeyRef": {"name": f"{made.name}-keys", "key": made.secret}}
        container["env"] = [{"name": made.secret, "valueFrom": reference}]
        what = f"{made.name}-keys --from-literal={made.secret}=KEY"
        how = f"# first: kubectl create secret generic {what}\n"
    pod = {
        "terminationGracePeriodSeconds": _grace_s(made),
        "enableServiceLinks": False,  # variables made from names would look like settings
        "containers": [container],
        "volumes": [{"name": n, "hostPath": {"path": at}} for n, at in places.items()]
        or [{"name": "models", "emptyDir": {}}],
    }
    spec = {
        "replicas": 1,
        "selector": {"matchLabels": labels},
        "strategy": {"type": "Recreate"},  # two would need twice the cards
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    door = {"selector": labels, "ports": [{"name": "http", "port": port, "targetPort": port}]}
    manifests: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": made.name}, "spec": door},
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": made.name},
            "spec": spec,
        },
    ]
    text = "---\n".join(yaml.safe_dump(each, sort_keys=False) for each in manifests)
    return {f"{made.name}.yaml": comment(made) + how + text}


FORMATS: dict[str, Callable[[Launch], dict[str, str]]] = {
    "command": script,
    "compose": compose,
    "kubernetes": kubernetes,
    "systemd": systemd,
}
