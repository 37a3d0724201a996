"""Makes the shipped drafter: writes text, trains several configurations at once, gathers reports.

    python -m benchmarks.drafters.train_default write  --target T.gguf --work W \
        --minutes 3.5 --writers 4
    python -m benchmarks.drafters.train_default train  --target T.gguf --work W --minutes 5 \
        --config base=base --config sharp=base,temperature=0.7 --config wide=wide
    python -m benchmarks.drafters.train_default train  --target T.gguf --work W --minutes 5 \
        --start deep.gguf --config more=deep --config slow=,learning_rate=0.0002
    python -m benchmarks.drafters.train_default report --work W --out O

A configuration is NAME=PRESET and, after commas, fields of the shape or the recipe. With --start
all of them begin with that drafter's weights (`default`: the shipped one) at a quarter of the usual
learning rate; the shape is the file's, and PRESET may be left out. Every phase may be run again:
text is added, a training goes on from its checkpoint (with more --minutes). --limit is for the
whole phase, in minutes: every training ends early enough to be exported by then. `report` leaves at
most eight files of at most 15 MiB: report.json, the Q4_0 drafters, and the best one's F16, larger
ones in parts (`cat NAME.gguf.part* > NAME.gguf`).

Where llama.cpp is built for CUDA, it and PyTorch in one process may crash with "free(): invalid
pointer": each brings its own libstdc++, and the order of imports does not always help. What does is
LD_PRELOAD=/lib/x86_64-linux-gnu/libstdc++.so.6 (docs/how-to/drafters.md).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import parlay  # noqa: F401 - before PyTorch, which helps some GPU builds; LD_PRELOAD helps all

# isort: split
import torch

from benchmarks.drafters import trainings
from parlay.errors import ParlayError
from parlay.hub.resolving import resolve_drafter
from parlay.llama.facts import read_facts
from parlay_train.corpus import Corpus
from parlay_train.distill import export_all, train
from parlay_train.start import Start, read_start
from parlay_train.student_shape import StudentShape, preset
from parlay_train.trainer import LEARNING_RATE, START_LEARNING_RATE, Recipe, TrainingProgress
from parlay_train.writers import WritingJob, write
from parlay_train.writing import WritingSettings
from parlay_train.writing_prompts import Shares

MAX_FILES = 8


def main() -> int:
    args = _arguments()
    phases = {"write": _write, "train": _train_all, "one": _train_one, "report": _report}
    return phases[args.phase](args)


# -- write ------------------------------------------------------------------------------------


def _write(args: argparse.Namespace) -> int:
    started = time.monotonic()
    settings = WritingSettings(
        slots=args.slots,
        context_size=args.context,
        seed=args.seed,
        shares=_sources(args),
        device=trainings.device(),
    )
    job = WritingJob(
        args.target,
        args.work / "corpus",
        n_tokens=args.tokens,
        seconds=args.minutes * 60,
        n_writers=args.writers,
        prompts=args.prompts,
        settings=settings,
    )
    shown = [0.0]

    def show(n: int) -> None:
        if time.monotonic() - shown[0] > args.every:
            shown[0] = time.monotonic()
            took = shown[0] - started
            print(f"{took:6.1f} s  {n:,} tokens  {n / took:,.0f} tok/s", flush=True)

    write(job, show)
    print(f"{Corpus(job.folder).n_generated:,} tokens in {job.folder}", flush=True)
    return 0


def _sources(args: argparse.Namespace) -> Shares:
    """Those of the package, or what --shares says of them."""
    given = [part.split("=", 1) for part in args.shares.split(",")] if args.shares else []
    shares: Shares = trainings.replaced(Shares(given=0.2 if args.prompts else 0.0), dict(given))
    return shares


# -- train ------------------------------------------------------------------------------------


def _train_all(args: argparse.Namespace) -> int:
    more = {"context": args.context} | ({"start": args.start} if args.start else {})
    return trainings.train_all("benchmarks.drafters.train_default", args, more)


def _train_one(args: argparse.Namespace) -> int:
    name, shape, recipe, begin = _configuration(args)
    shown = [0.0]

    def watch(progress: TrainingProgress, done: float, loss: float) -> None:
        if time.monotonic() - shown[0] > args.every:
            shown[0] = time.monotonic()
            rate = progress.tokens_seen / max(progress.seconds, 1e-9)
            look = progress.looks[-1] if progress.looks else None
            held = f"first token {look.first_token:.4f}" if look else ""
            print(
                f"{progress.seconds:6.1f} s  {done:4.0%}  step {progress.step}  loss {loss:.4f}"
                f"  {rate:,.0f} tok/s  {held}",
                flush=True,
            )

    trainer, trained = train(
        args.target,
        args.work / "corpus",
        shape,
        recipe,
        trainings.device(),
        args.work / f"{name}.pt",
        watch,
        _say,
        begin,
    )
    export_all(trainer, trained, args.target, args.work / f"{name}.gguf", trainings.FILE_TYPES)
    trained.save(args.work / f"{name}.json")
    held = trained.agreement
    print(", ".join(f"{t}: {a.first_token:.4f} {a.acceptance_length:.3f}" for t, a in held.items()))
    return 0


def _say(text: str) -> None:
    print(text, flush=True)


def _configuration(args: argparse.Namespace) -> tuple[str, StudentShape, Recipe, Start | None]:
    name, base, given = trainings.split(args.config[0])
    begin = _begin(args, base)
    recipe = Recipe(
        steps=args.steps,
        minutes=args.minutes,
        ends_at=args.ends_at,
        batch_tokens=16_384,
        learning_rate=START_LEARNING_RATE if begin else LEARNING_RATE,
        rounding="q4_0",
    )
    if begin is None:
        before = preset(base, read_facts(args.target).n_vocab, args.context)
    else:
        before = begin.shape
    shape, recipe = trainings.changed(before, recipe, given)
    if begin and shape != begin.shape:
        raise SystemExit(f"{args.config[0]}: with --start the shape is the file's")
    return name, shape, recipe, begin


def _begin(args: argparse.Namespace, base: str) -> Start | None:
    if not args.start:
        return None
    try:
        begin = read_start(resolve_drafter(args.start), args.target, args.context)
        if base:
            begin.check_preset(base)
    except ParlayError as error:
        raise SystemExit(str(error)) from None
    return begin


# -- report -----------------------------------------------------------------------------------


def _report(args: argparse.Namespace) -> int:
    paths = [p for p in sorted(args.work.glob("*.json")) if not p.name.endswith(".dflash.json")]
    reports = {path.stem: json.loads(path.read_text()) for path in paths}
    if not reports:
        raise SystemExit(f"no training has ended in {args.work}")
    ranked = trainings.ranked(reports)
    corpus = Corpus(args.work / "corpus")
    whole = {
        "target": corpus.header.target,
        "written_tokens": corpus.n_generated,
        "shares_below": _shares(corpus),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "torch": torch.__version__,
        "best": ranked[0],
        "configurations": reports,
    }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "report.json").write_text(json.dumps(whole, indent=1))
    room = MAX_FILES - 1
    files = [(args.work / f"{ranked[0]}-f16.gguf", f"{ranked[0]}-f16.gguf")]
    files += [(args.work / f"{name}.gguf", f"{name}-q4_0.gguf") for name in ranked]
    # The best one's Q4_0 is what will be shipped: it comes first.
    for source, name in (files[1], files[0], *files[2:]):
        parts = trainings.in_parts(source)
        if len(parts) <= room:
            room -= len(parts)
            trainings.put(parts, args.out, name)
    for name in ranked:
        report = reports[name]
        print(
            f"{trainings.line(name, report)}  seen {report['seen']['first_token']:.4f}"
            f"  {report['bytes_per_token']['q4_0'] / 1e6:.1f} MB/token"
            f"  {report['tokens_seen'] / 1e6:.0f}M seen in {report['minutes']:.1f} min"
        )
    return 0


def _shares(corpus: Corpus) -> dict[str, float]:
    """Which share of greedy text a vocabulary cut to its first ids would hold."""
    limits = (8192, 16384, 24576, 32768)
    n_below, n_all = dict.fromkeys(limits, 0), 0
    for text in corpus.texts():
        if text.temperature == 0:
            n_all += len(text.answer)
            for limit in limits:
                n_below[limit] += int((text.answer < limit).sum())
    return {str(limit): round(n / max(1, n_all), 4) for limit, n in n_below.items()}


def _arguments() -> argparse.Namespace:
    parser = trainings.arguments(__doc__, ("write", "train", "one", "report"))
    parser.add_argument("--tokens", type=int, default=10**9)
    parser.add_argument("--writers", type=int, default=1)
    parser.add_argument("--slots", type=int, default=256)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--shares", help="write: such as over_texts=0.6,found=0.8")
    parser.add_argument("--start", help="train: a drafter to begin from (GGUF), or default")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
