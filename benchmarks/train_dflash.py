"""Makes the shipped block drafter from text that train_default.py wrote.

    python benchmarks/train_dflash.py train  --target T.gguf --work W --minutes 3 --tokens 3000000 \
        --config block=base --config block-small=small,block_size=6
    python benchmarks/train_dflash.py report --work W --out O

A configuration is NAME=PRESET and, after commas, fields of the preset or the recipe; each is a
process of its own, which captures the target's states of so many written tokens and then trains.
--limit is for the whole phase, in minutes: what capturing takes is taken from the training, which
ends early enough to be exported. Why LD_PRELOAD may be needed: see train_default.py.
`report` leaves files of at most 15 MiB: larger ones in parts (`cat X.part* > X`).
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import parlay  # noqa: F401 - before PyTorch, which helps some GPU builds; LD_PRELOAD helps all

# isort: split
import torch

from parlay.training.block_shape import BlockPreset, block_preset
from parlay.training.dflash import BlockSettings, export_blocks, train_blocks
from parlay.training.trainer import Progress, Recipe

FILE_TYPES = ("q4_0", "q8_0", "f16")
PART_BYTES = 15 << 20
EXPORT_S = 45.0  # kept free at the end, for the last looks and three files


def main() -> int:
    args = _arguments()
    return {"train": _train_all, "one": _train_one, "report": _report}[args.phase](args)


def _train_all(args: argparse.Namespace) -> int:
    """One process for each configuration; their output goes to a log each."""
    running = {}
    for config in args.config:
        name = config.partition("=")[0]
        command = [sys.executable, __file__, "one", "--target", str(args.target)]
        command += ["--work", str(args.work), "--minutes", str(args.minutes), "--config", config]
        command += ["--steps", str(args.steps), "--tokens", str(args.tokens)]
        command += ["--ends-at", str(time.time() + args.limit * 60 - EXPORT_S)]
        log = (args.work / f"{name}.log").open("w")
        running[name] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    codes = {name: process.wait() for name, process in running.items()}
    for name, code in codes.items():
        tail = (args.work / f"{name}.log").read_text().splitlines()[-8:]
        print(f"== {name} (exit {code})", *tail, sep="\n")
    return max(codes.values())


def _train_one(args: argparse.Namespace) -> int:
    started = shown = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - started:6.1f} s  {text}", flush=True)

    def watch(progress: Progress, done: float, loss: float) -> None:
        nonlocal shown
        if time.monotonic() - shown > args.every:
            shown = time.monotonic()
            look = progress.looks[-1] if progress.looks else None
            held = f"{look.first_token:.4f} {look.acceptance_length:.3f}" if look else ""
            say(f"{done:4.0%}  step {progress.step}  loss {loss:.4f}  {held}")

    name, preset, recipe = _configuration(args)
    settings = BlockSettings(preset, args.tokens, _device())
    student, trained = train_blocks(
        args.target,
        args.work / "corpus",
        settings,
        recipe,
        args.work / f"{name}.dflash.pt",
        watch,
        say,
    )
    facts = {"distilled for": args.target.name, "made by": "parlay distill --kind dflash"}
    for file_type in FILE_TYPES:
        path = args.work / f"{name}-{file_type}.gguf"
        export_blocks(path, args.target, student, trained.head_rows, file_type, facts)
        say(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB")
    (args.work / f"{name}.dflash.json").write_text(json.dumps(trained.as_dict(), indent=1))
    held = trained.agreement
    say(", ".join(f"{t}: {a.first_token:.4f} {a.acceptance_length:.3f}" for t, a in held.items()))
    return 0


def _configuration(args: argparse.Namespace) -> tuple[str, BlockPreset, Recipe]:
    """NAME=PRESET[,field=value...]"""
    name, _, rest = args.config[0].partition("=")
    base, *changes = rest.split(",")
    given = dict(change.split("=", 1) for change in changes)
    preset = block_preset(base)
    recipe = Recipe(
        steps=args.steps,
        minutes=args.minutes,
        ends_at=args.ends_at,
        batch_tokens=args.batch_tokens,
        learning_rate=1.5e-3,
        rounding="q4_0",
    )
    of_preset = {key: value for key, value in given.items() if key in BlockPreset.__slots__}
    of_recipe = {key: value for key, value in given.items() if key not in of_preset}
    return name, _changed(preset, of_preset), _changed(recipe, of_recipe)


def _changed(before: Any, given: Mapping[str, str]) -> Any:
    """The same with other values, each read as the type of the old one."""
    kinds = {field.name: type(getattr(before, field.name)) for field in fields(before)}
    unknown = [key for key in given if key not in kinds]
    if unknown:
        raise SystemExit(f"no such field: {unknown[0]}; there are {', '.join(kinds)}")
    return replace(before, **{key: kinds[key](value) for key, value in given.items()})


def _report(args: argparse.Namespace) -> int:
    paths = sorted(args.work.glob("*.dflash.json"))
    if not paths:
        raise SystemExit(f"no training has ended in {args.work}")
    reports = {p.name.removesuffix(".dflash.json"): json.loads(p.read_text()) for p in paths}
    ranked = sorted(reports, key=lambda n: -reports[n]["held_out"]["q4_0"]["acceptance_length"])
    args.out.mkdir(parents=True, exist_ok=True)
    whole = {"torch": torch.__version__, "best": ranked[0], "configurations": reports}
    (args.out / "dflash.json").write_text(json.dumps(whole, indent=1))
    for name in ranked:
        _put(args.work / f"{name}-q4_0.gguf", args.out)
        q4, f16 = (reports[name]["held_out"][t] for t in ("q4_0", "f16"))
        print(
            f"{name:12} q4_0 {q4['first_token']:.4f} {q4['acceptance_length']:.3f}"
            f"  f16 {f16['first_token']:.4f} {f16['acceptance_length']:.3f}"
            f"  {reports[name]['parameters'] / 1e6:.1f}M parameters"
            f"  {reports[name]['steps']} steps in {reports[name]['minutes']:.1f} min"
        )
    _put(args.work / f"{ranked[0]}-f16.gguf", args.out)
    return 0


def _put(path: Path, out: Path) -> None:
    data = path.read_bytes()
    parts = [data[at : at + PART_BYTES] for at in range(0, len(data), PART_BYTES)]
    for i, part in enumerate(parts):
        name = path.name if len(parts) == 1 else f"{path.name}.part{i}"
        (out / name).write_bytes(part)


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("phase", choices=("train", "one", "report"))
    parser.add_argument("--target", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--limit", type=float, default=math.inf, help="minutes, exports included")
    parser.add_argument("--ends-at", type=float, default=math.inf, help="set by --limit")
    parser.add_argument("--steps", type=int, default=10**9)
    parser.add_argument("--tokens", type=int, default=3_000_000)
    parser.add_argument("--batch-tokens", type=int, default=24_576)
    parser.add_argument("--every", type=float, default=10.0)
    parser.add_argument("--config", action="append", default=[])
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
