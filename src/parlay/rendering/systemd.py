"""systemd units, one for each machine.

Arguments are quoted as systemd reads them: percent signs and dollars would be replaced.
"""

from __future__ import annotations

import math

from parlay.rendering.launch import Command, LaunchPlan, RenderError
from parlay.rendering.remarks import comment

_ESCAPES = {"\\": "\\\\", '"': '\\"', "%": "%%"}


def units(plan: LaunchPlan) -> dict[str, str]:
    """File names and their contents."""
    return {f"{plan.name}-{c.role}.service": _unit(plan, c) for c in plan.commands}


def _unit(plan: LaunchPlan, command: Command) -> str:
    lines = [
        "[Unit]",
        f"Description={plan.name} on {plan.engine} ({command.role})",
        "After=network-online.target",
        "Wants=network-online.target",
        "",
        "[Service]",
        "Type=exec",
        *[f"Environment={quoted(f'{k}={v}')}" for k, v in sorted(plan.env.items())],
        *(_secrets(plan) if command.serves else []),
        *[f"ExecStartPre={_start(before)}" for before in command.before],
        f"ExecStart={_start(command.argv)}",
        "Restart=on-failure",
        "RestartSec=5",
        f"TimeoutStopSec={math.ceil(plan.drain_s) + 10}",
        "NoNewPrivileges=true",
        "PrivateTmp=true",
        "",
        "[Install]",
        "WantedBy=multi-user.target",
        "",
    ]
    return comment(plan) + "\n".join(lines)


def _secrets(plan: LaunchPlan) -> list[str]:
    """The file must be there (no dash before its name), or the unit does not start."""
    lines = []
    for secret in plan.secrets:
        if secret.is_file:
            raise RenderError(
                f"{plan.engine} reads its key from {secret.name}; use --format command, compose or"
                " kubernetes, or let the gateway check keys"
            )
        lines.append(f"EnvironmentFile=/etc/parlay/{plan.name}.env")
    return lines


def _start(argv: tuple[str, ...]) -> str:
    """systemd wants a path; env finds the program as a shell would."""
    return " ".join(["/usr/bin/env", *(quoted(word.replace("$", "$$")) for word in argv)])


def quoted(word: str) -> str:
    """One word, whatever is in it."""
    return '"' + "".join(_ESCAPES.get(c, c) for c in word) + '"'
