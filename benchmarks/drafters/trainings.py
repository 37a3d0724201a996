"""Several trainings at once, each a process of its own: what train_default and train_dflash share.

Knows configurations, logs and files in parts; what is trained is the caller's business.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.shared.arguments import parser_of
from parlay_train.trainer import Recipe

FILE_TYPES = ("q4_0", "q8_0", "f16")
PART_BYTES = 15 << 20
EXPORT_S = 45.0  # kept free at the end, for the last looks and three files
_N_LAST_LINES = 8


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def arguments(about: str | None, phases: Sequence[str]) -> argparse.ArgumentParser:
    """What both scripts take."""
    parser = parser_of(about)
    parser.add_argument("phase", choices=phases)
    parser.add_argument("--target", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--limit", type=float, default=math.inf, help="minutes, exports included")
    parser.add_argument("--ends-at", type=float, default=math.inf, help="set by --limit")
    parser.add_argument("--steps", type=int, default=10**6)
    parser.add_argument("--config", action="append", default=[])
    parser.add_argument("--every", type=float, default=10.0, help="seconds between lines")
    return parser


def train_all(module: str, args: argparse.Namespace, more: Mapping[str, object]) -> int:
    """One process for each configuration; their output goes to a log each."""
    given = {
        "target": args.target,
        "work": args.work,
        "minutes": args.minutes,
        "steps": args.steps,
        "every": args.every,
        "ends-at": time.time() + args.limit * 60 - EXPORT_S,
        **more,
    }
    command = [sys.executable, "-m", module, "one"]
    command += [part for key, value in given.items() for part in (f"--{key}", str(value))]
    running = {}
    for config in args.config:
        name = config.partition("=")[0]
        log = (args.work / f"{name}.log").open("w")
        running[name] = subprocess.Popen(
            [*command, "--config", config], stdout=log, stderr=subprocess.STDOUT
        )
    codes = {name: process.wait() for name, process in running.items()}
    for name, code in codes.items():
        tail = (args.work / f"{name}.log").read_text().splitlines()[-_N_LAST_LINES:]
        print(f"== {name} (exit {code})", *tail, sep="\n")
    return max(codes.values())


def split(config: str) -> tuple[str, str, dict[str, str]]:
    """NAME=PRESET[,field=value...]"""
    name, _, rest = config.partition("=")
    base, *changes = rest.split(",")
    return name, base, dict(change.split("=", 1) for change in changes)


def changed(shape: Any, recipe: Recipe, given: Mapping[str, str]) -> tuple[Any, Recipe]:
    """Both with other values: a field of the shape, or else one of the recipe."""
    of_shape = {key: value for key, value in given.items() if key in type(shape).__slots__}
    of_recipe = {key: value for key, value in given.items() if key not in of_shape}
    return replaced(shape, of_shape), replaced(recipe, of_recipe)


def replaced(before: Any, given: Mapping[str, str]) -> Any:
    """Each value is read as the type of the old one."""
    kinds = {field.name: type(getattr(before, field.name)) for field in fields(before)}
    unknown = [key for key in given if key not in kinds]
    if unknown:
        raise SystemExit(f"no such field: {unknown[0]}; there are {', '.join(kinds)}")
    return replace(before, **{key: _read(kinds[key], value) for key, value in given.items()})


def _read(kind: type, value: str) -> Any:
    return value == "true" if kind is bool else kind(value)


def ranked(reports: Mapping[str, Any]) -> list[str]:
    """Their names, the one that guesses most first."""
    return sorted(reports, key=lambda n: -reports[n]["held_out"]["q4_0"]["acceptance_length"])


def line(name: str, report: Mapping[str, Any]) -> str:
    """What was held out, by the weights as shipped and as trained."""
    q4, f16 = (report["held_out"][t] for t in ("q4_0", "f16"))
    return (
        f"{name:12} q4_0 {q4['first_token']:.4f} {q4['acceptance_length']:.3f}"
        f"  f16 {f16['first_token']:.4f} {f16['acceptance_length']:.3f}"
    )


def in_parts(path: Path) -> list[bytes]:
    data = path.read_bytes()
    return [data[at : at + PART_BYTES] for at in range(0, len(data), PART_BYTES)]


def put(parts: Sequence[bytes], out: Path, name: str) -> None:
    for i, part in enumerate(parts):
        (out / (name if len(parts) == 1 else f"{name}.part{i}")).write_bytes(part)
