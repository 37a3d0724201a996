"""Makes the shipped block drafter from text that train_default.py wrote.

    python -m benchmarks.drafters.train_dflash train  --target T.gguf --work W --minutes 3 \
        --tokens 3000000 --config block=base --config block-small=small,block_size=6
    python -m benchmarks.drafters.train_dflash report --work W --out O

A configuration is NAME=PRESET and, after commas, fields of the preset or the recipe; each is a
process of its own, which captures the target's states of so many written tokens and then trains.
--limit is for the whole phase, in minutes: what capturing takes is taken from the training, which
ends early enough to be exported. Why LD_PRELOAD may be needed: see train_default.py.
`report` leaves files of at most 15 MiB: larger ones in parts (`cat X.part* > X`).
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import parlay  # noqa: F401 - before PyTorch, which helps some GPU builds; LD_PRELOAD helps all

# isort: split
import torch

from benchmarks.drafters import trainings
from parlay_train.block.block_distill import BlockSettings, export_blocks, train_blocks
from parlay_train.block.block_shape import BlockPreset, block_preset
from parlay_train.trainer import Recipe, TrainingProgress


def main() -> int:
    args = _arguments()
    return {"train": _train_all, "one": _train_one, "report": _report}[args.phase](args)


def _train_all(args: argparse.Namespace) -> int:
    more = {"tokens": args.tokens, "batch-tokens": args.batch_tokens}
    return trainings.train_all("benchmarks.drafters.train_dflash", args, more)


def _train_one(args: argparse.Namespace) -> int:
    started = shown = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - started:6.1f} s  {text}", flush=True)

    def watch(progress: TrainingProgress, done: float, loss: float) -> None:
        nonlocal shown
        if time.monotonic() - shown > args.every:
            shown = time.monotonic()
            look = progress.looks[-1] if progress.looks else None
            held = f"{look.first_token:.4f} {look.acceptance_length:.3f}" if look else ""
            say(f"{done:4.0%}  step {progress.step}  loss {loss:.4f}  {held}")

    name, preset, recipe = _configuration(args)
    settings = BlockSettings(preset, args.tokens, trainings.device())
    student, trained = train_blocks(
        args.target,
        args.work / "corpus",
        settings,
        recipe,
        args.work / f"{name}.dflash.pt",
        watch,
        say,
    )
    facts = {"distilled for": args.target.name, "made by": "parlay train --kind dflash"}
    for file_type in trainings.FILE_TYPES:
        path = args.work / f"{name}-{file_type}.gguf"
        export_blocks(path, args.target, student, trained.head_rows, file_type, facts)
        say(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB")
    (args.work / f"{name}.dflash.json").write_text(json.dumps(trained.as_dict(), indent=1))
    held = trained.agreement
    say(", ".join(f"{t}: {a.first_token:.4f} {a.acceptance_length:.3f}" for t, a in held.items()))
    return 0


def _configuration(args: argparse.Namespace) -> tuple[str, BlockPreset, Recipe]:
    name, base, given = trainings.split(args.config[0])
    recipe = Recipe(
        steps=args.steps,
        minutes=args.minutes,
        ends_at=args.ends_at,
        batch_tokens=args.batch_tokens,
        learning_rate=1.5e-3,
        rounding="q4_0",
    )
    return name, *trainings.changed(block_preset(base), recipe, given)


def _report(args: argparse.Namespace) -> int:
    paths = sorted(args.work.glob("*.dflash.json"))
    if not paths:
        raise SystemExit(f"no training has ended in {args.work}")
    reports = {p.name.removesuffix(".dflash.json"): json.loads(p.read_text()) for p in paths}
    ranked = trainings.ranked(reports)
    args.out.mkdir(parents=True, exist_ok=True)
    whole = {"torch": torch.__version__, "best": ranked[0], "configurations": reports}
    (args.out / "dflash.json").write_text(json.dumps(whole, indent=1))
    for name in ranked:
        report = reports[name]
        print(
            f"{trainings.line(name, report)}  {report['parameters'] / 1e6:.1f}M parameters"
            f"  {report['steps']} steps in {report['minutes']:.1f} min"
        )
    for name in (*(f"{name}-q4_0.gguf" for name in ranked), f"{ranked[0]}-f16.gguf"):
        trainings.put(trainings.in_parts(args.work / name), args.out, name)
    return 0


def _arguments() -> argparse.Namespace:
    parser = trainings.arguments(__doc__, ("train", "one", "report"))
    parser.add_argument("--tokens", type=int, default=3_000_000)
    parser.add_argument("--batch-tokens", type=int, default=24_576)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
