"""A launch plan: the commands that start an engine, and what of the deployment they carry.

Plain data; knows neither an engine's flags nor a file format.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from parlay.errors import BadRequest

HEALTH = "/health"  # of all three engines
_MAX_NAME = 40  # Kubernetes allows 63, and names get endings


class RenderError(BadRequest):
    """The deployment cannot be carried over to that engine or format, and why."""


@dataclass(frozen=True, slots=True)
class Secret:
    """What must never be in an argument: the name of a variable, or of a file of settings."""

    name: str  # of the variable, or the path where the engine looks
    is_file: bool = False
    holds: str = "the API key"


@dataclass(frozen=True, slots=True)
class Command:
    """What one machine runs."""

    role: str  # server, head, worker-1, ...
    argv: tuple[str, ...]
    before: tuple[tuple[str, ...], ...] = ()  # run first, each to its end
    serves: bool = True  # answers HTTP


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """What became of one key of the deployment file."""

    key: str
    carried: bool
    how: str  # by what, or why not
    given: bool  # the file says it; otherwise it is the default


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """How to start one engine on all its machines."""

    engine: str
    version: str  # of the engine whose flags these are
    name: str  # of the service, safe everywhere
    commands: tuple[Command, ...]
    env: Mapping[str, str]
    secrets: tuple[Secret, ...]
    host: str  # where clients shall reach it
    port: int
    image: str
    gpus: int  # of one machine
    gpu_resource: str
    folders: tuple[str, ...]  # of model files, to be mounted where commands run in containers
    drain_s: float
    asks_for_key: bool
    public_without_key: bool
    entries: tuple[KeyEntry, ...]
    notes: tuple[str, ...] = ()

    @property
    def left(self) -> tuple[KeyEntry, ...]:
        return tuple(entry for entry in self.entries if not entry.carried)

    def as_dict(self) -> dict[str, Any]:
        """The public JSON form."""
        return {
            "engine": self.engine,
            "version": self.version,
            "name": self.name,
            "commands": [
                {"role": c.role, "argv": list(c.argv), "before": [list(b) for b in c.before]}
                for c in self.commands
            ],
            "env": dict(self.env),
            "secrets": [secret.name for secret in self.secrets],
            "port": self.port,
            "image": self.image,
            "gpus_per_node": self.gpus,
            "carried": {e.key: e.how for e in self.entries if e.carried},
            "not_carried": [{"key": e.key, "why": e.how, "given": e.given} for e in self.left],
            "notes": list(self.notes),
        }


def service_name(text: str) -> str:
    """Lower case letters, digits and dashes, as every tool takes them."""
    cleaned = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:_MAX_NAME].strip("-")
    return cleaned if cleaned[:1].isalpha() else f"model-{cleaned}".strip("-")
