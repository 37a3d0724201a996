"""From a deployment to files: which engine, which format, and what must not be combined.

The one entrance of the package; the command line calls it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from parlay.deployment import Deployment
from parlay.rendering import compose, kubernetes, shell, systemd
from parlay.rendering.builder import Builder
from parlay.rendering.common import Site, alias_of
from parlay.rendering.launch import LaunchPlan, RenderError, service_name
from parlay.rendering.llama_server import LlamaServerCommand
from parlay.rendering.sglang import SglangCommand
from parlay.rendering.vllm import VllmCommand

T = TypeVar("T")

ENGINES: Mapping[str, type[Builder]] = {
    "vllm": VllmCommand,
    "llama-server": LlamaServerCommand,
    "sglang": SglangCommand,
}
FORMATS: Mapping[str, Callable[[LaunchPlan], dict[str, str]]] = {
    "command": shell.scripts,
    "compose": compose.compose,
    "kubernetes": kubernetes.kubernetes,
    "systemd": systemd.units,
    "ray": shell.scripts,
}
_LONGEST_WORD = 100_000


@dataclass(frozen=True, slots=True)
class Rendered:
    """A plan and its files by name."""

    plan: LaunchPlan
    files: Mapping[str, str]


def render(deployment: Deployment, engine: str, form: str = "command") -> Rendered:
    """The launch plan and the files of one format."""
    builder, write = _known(ENGINES, engine, "engine"), _known(FORMATS, form, "format")
    if form == "ray" and engine != "vllm":
        raise RenderError("only vLLM is started through Ray here; use another --format")
    made = builder(deployment, _site(deployment, form)).plan()
    _check_words(made)
    _check_door(made, form)
    return Rendered(made, write(made))


def _known(found: Mapping[str, T], name: str, what: str) -> T:
    if name not in found:
        raise RenderError(f"no {what} {name!r}; known: {', '.join(found)}")
    return found[name]


def _site(deployment: Deployment, form: str) -> Site:
    head = deployment.scale.head
    if form == "compose":
        return Site("0.0.0.0", head, in_container=True)
    if form == "kubernetes":
        target = deployment.scale.target or deployment.model.target
        name = service_name(alias_of(deployment, target)[0])
        return Site("0.0.0.0", kubernetes.head_service(name), in_container=True)
    return Site(deployment.server.host, head, launcher="ray" if form == "ray" else "native")


def _check_words(plan: LaunchPlan) -> None:
    """No format can carry a line break in a name for sure, and no name needs one."""
    words = [word for command in plan.commands for word in command.argv]
    for word in (*words, *plan.env.values(), *plan.folders):
        if any(ord(c) < 32 or c in "\x7f\x85\u2028\u2029" for c in word):
            raise RenderError(f"{word!r:.60} holds a control character; rename it")
        if len(word) > _LONGEST_WORD:
            raise RenderError(f"{word[:40]!r}... is longer than an argument can be")


def _check_door(plan: LaunchPlan, form: str) -> None:
    """As our own server: no public address without a key."""
    if plan.asks_for_key or plan.public_without_key or form == "kubernetes" or _is_local(plan.host):
        return
    raise RenderError(
        f"{plan.host} is public and there is no key; set server.api_keys, or"
        " server.allow_public_without_key: true"
    )


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
