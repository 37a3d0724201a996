"""Launch commands as shell scripts, one for each machine.

Every argument is quoted for the shell; secrets are only asked for, never written.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from parlay.rendering.launch import Command, LaunchPlan, Secret
from parlay.rendering.remarks import comment

_WIDTH = 96


def scripts(plan: LaunchPlan) -> dict[str, str]:
    """File names and their contents."""
    return {f"{plan.name}-{c.role}.sh": script(plan, c) for c in plan.commands}


def script(plan: LaunchPlan, command: Command) -> str:
    """One machine's script: it stops where a secret is missing."""
    lines = ["#!/bin/sh", comment(plan).rstrip("\n"), "set -eu"]
    lines += [_demand(s) for s in plan.secrets if command.serves or s.is_file]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in sorted(plan.env.items())]
    lines += [folded(before) for before in command.before]
    return "\n".join([*lines, f"exec {folded(command.argv)}", ""])


def _demand(secret: Secret) -> str:
    if not secret.is_file:
        return f': "${{{secret.name}:?set it to the API key}}"; export {secret.name}'
    path = shlex.quote(secret.name)
    return f"[ -r {path} ] || {{ echo {path} is missing >&2; exit 2; }}"


def folded(argv: Sequence[str]) -> str:
    """A command over several lines, an option on each."""
    lines: list[str] = []
    for word in argv:
        quoted = shlex.quote(word)
        if lines and not word.startswith("--") and len(lines[-1]) + len(quoted) < _WIDTH:
            lines[-1] += f" {quoted}"
        else:
            lines.append(quoted)
    return " \\\n  ".join(lines)
