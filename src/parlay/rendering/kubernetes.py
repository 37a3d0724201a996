"""Kubernetes manifests: a Deployment, or one StatefulSet a node, and the Services before them.

Keys are taken from a Secret that must exist: an empty one would leave the server open.
"""

from __future__ import annotations

import math
from pathlib import PurePosixPath
from typing import Any

import yaml

from parlay.rendering.launch import HEALTH, Command, LaunchPlan, RenderError
from parlay.rendering.remarks import comment

Manifest = dict[str, Any]
_HUB_CACHE = "/root/.cache/huggingface"
_PROBE = {"periodSeconds": 10, "timeoutSeconds": 5}


class _Plain(yaml.SafeDumper):
    """Writes equal parts out twice instead of pointing at the first."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def head_service(name: str) -> str:
    """The address of the first node inside the cluster."""
    return f"{name}-head"


def kubernetes(plan: LaunchPlan) -> dict[str, str]:
    """One file of manifests."""
    if not plan.asks_for_key and not plan.public_without_key:
        raise RenderError(
            "everything in a cluster could reach it without a key; set server.api_keys or"
            " server.allow_public_without_key: true"
        )
    single = len(plan.commands) == 1
    manifests = [_service(plan)]
    if single:
        manifests.append(_deployment(plan))
    else:
        manifests.append(_headless(plan))
        manifests += [_stateful_set(plan, command) for command in plan.commands]
    text = yaml.dump_all(manifests, Dumper=_Plain, sort_keys=False, explicit_start=True)
    return {f"{plan.name}.yaml": comment(plan) + _how_to(plan) + text}


def _how_to(plan: LaunchPlan) -> str:
    lines = ""
    for secret in plan.secrets:
        name = PurePosixPath(secret.name).name
        source = f"--from-file={name}" if secret.is_file else "--from-env-file=keys.env"
        line = secret.holds if secret.is_file else f"one line, {secret.name}=KEY"
        lines += f"# first: kubectl create secret generic {_secret(plan)} {source}  ({line})\n"
    return lines


def _secret(plan: LaunchPlan) -> str:
    return f"{plan.name}-keys"


def _labels(plan: LaunchPlan, role: str | None = None) -> dict[str, str]:
    labels = {"app.kubernetes.io/name": plan.name, "app.kubernetes.io/component": "engine"}
    return labels if role is None else {**labels, "parlay/role": role}


def _service(plan: LaunchPlan) -> Manifest:
    role = plan.commands[0].role
    port = {"name": "http", "port": plan.port, "targetPort": "http"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": plan.name, "labels": _labels(plan)},
        "spec": {"selector": _labels(plan, role), "ports": [port]},
    }


def _headless(plan: LaunchPlan) -> Manifest:
    """The first node's own address, known before it is ready."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": _labels(plan, plan.commands[0].role),
        "ports": [{"name": "http", "port": plan.port}],
    }
    metadata = {"name": head_service(plan.name), "labels": _labels(plan)}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def _deployment(plan: LaunchPlan) -> Manifest:
    command = plan.commands[0]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": plan.name, "labels": _labels(plan)},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": _labels(plan, command.role)},
            "strategy": {"type": "Recreate"},  # two would need twice the cards
            "template": _template(plan, command),
        },
    }


def _stateful_set(plan: LaunchPlan, command: Command) -> Manifest:
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": f"{plan.name}-{command.role}", "labels": _labels(plan)},
        "spec": {
            "replicas": 1,
            "serviceName": head_service(plan.name),
            "selector": {"matchLabels": _labels(plan, command.role)},
            "template": _template(plan, command),
        },
    }


def _template(plan: LaunchPlan, command: Command) -> Manifest:
    volumes = [{"name": "shared", "emptyDir": {"medium": "Memory"}}, *_volumes(plan)]
    spec: Manifest = {
        "terminationGracePeriodSeconds": math.ceil(plan.drain_s) + 10,
        "enableServiceLinks": False,  # variables made from names would look like settings
        "containers": [_container(plan, command)],
        "volumes": [_without_path(volume) for volume in volumes],
    }
    return {"metadata": {"labels": _labels(plan, command.role)}, "spec": spec}


def _container(plan: LaunchPlan, command: Command) -> Manifest:
    argv = [literal(word) for word in command.argv]
    container: Manifest = {
        "name": "engine",
        "image": plan.image,
        "command": argv[:1],
        "args": argv[1:],
        "env": _environment(plan),
        "ports": [{"name": "http", "containerPort": plan.port}] if command.serves else [],
        "resources": {"limits": {plan.gpu_resource: plan.gpus}} if plan.gpus else _cpu(plan),
        "volumeMounts": _mounts(plan),
        "securityContext": {"allowPrivilegeEscalation": False},
        **(_probes(plan) if command.serves else {}),
    }
    return {key: value for key, value in container.items() if value}


def literal(word: str) -> str:
    """Text in which Kubernetes replaces nothing: $(NAME) would be a variable."""
    return word.replace("$(", "$$(")


def _cpu(plan: LaunchPlan) -> Manifest:
    return {"requests": {"cpu": plan.env.get("OMP_NUM_THREADS", "1")}}


def _environment(plan: LaunchPlan) -> list[Manifest]:
    found: list[Manifest] = [{"name": n, "value": literal(v)} for n, v in sorted(plan.env.items())]
    for secret in plan.secrets:
        if not secret.is_file:
            reference = {"name": _secret(plan), "key": secret.name}
            found.append({"name": secret.name, "valueFrom": {"secretKeyRef": reference}})
    return found


def _probes(plan: LaunchPlan) -> Manifest:
    get = {"httpGet": {"path": HEALTH, "port": "http"}, **_PROBE}
    return {
        "startupProbe": {**get, "failureThreshold": 180},  # half an hour to load
        "readinessProbe": {**get, "failureThreshold": 1},
        "livenessProbe": {**get, "failureThreshold": 6},
    }


def _volumes(plan: LaunchPlan) -> list[Manifest]:
    """Each with the path where it is mounted."""
    found: list[Manifest] = []
    for i, folder in enumerate(plan.folders):
        found.append({"name": f"models-{i}", "hostPath": {"path": folder}, "at": folder})
    if not plan.folders:
        found.append({"name": "models", "emptyDir": {}, "at": _HUB_CACHE})
    for secret in plan.secrets:
        if secret.is_file:
            folder = str(PurePosixPath(secret.name).parent)
            found.append({"name": "keys", "secret": {"secretName": _secret(plan)}, "at": folder})
    return found


def _without_path(volume: Manifest) -> Manifest:
    return {key: value for key, value in volume.items() if key != "at"}


def _mounts(plan: LaunchPlan) -> list[Manifest]:
    mounts: list[Manifest] = [{"name": "shared", "mountPath": "/dev/shm"}]
    for volume in _volumes(plan):
        read_only = "hostPath" in volume or "secret" in volume
        mounts.append({"name": volume["name"], "mountPath": volume["at"], "readOnly": read_only})
    return mounts
