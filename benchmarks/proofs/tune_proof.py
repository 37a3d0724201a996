"""Does `parlay tune` pick what a full benchmark picks? Both on one target, one after the other.

The full benchmark runs every candidate over every prompt `--pairs` times, without stopping anybody.

  python -m benchmarks.proofs.tune_proof --target default --minutes 10 --pairs 5 --json tune.json
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.shared.arguments import parser_of
from parlay.bench.compare import compare
from parlay.bench.run import Runner, RunOptions, SampleFile
from parlay.hub.resolving import resolve_model
from parlay.tuning.candidates import PLAIN, Opener, Sitting, candidates, sittings
from parlay.tuning.outcome import outcome
from parlay.tuning.prompts import Workload, from_suite
from parlay.tuning.tuner import Tuner


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--target", default="default")
    parser.add_argument("--prompts", default="core-12")
    parser.add_argument("--minutes", type=float, default=10.0, help="of the tuning")
    parser.add_argument("--pairs", type=int, default=5, help="of the full benchmark")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--context-size", type=int, default=4096)
    parser.add_argument("--json", type=Path, help="write the figures there")
    args = parser.parse_args()
    path, work = resolve_model(args.target), from_suite(args.prompts)
    races = sittings(candidates(path, args.context_size))
    opener = Opener(path, options={"context_size": args.context_size})
    with tempfile.TemporaryDirectory(prefix="parlay-proof-") as folder:
        tuned = tune(work, races, opener, args.minutes * 60, Path(folder))
        full = full_bench(work, races, opener, args, Path(folder) / "full")
    best = max((row for row in full.values() if row["low"] > 1), key=_ratio, default=None)
    picked = full.get(tuned["winner"], {"speedup": 1.0})
    found = {
        "tuned": tuned,
        "full": full,
        "picked_by_full": best and best["candidate"],
        "picked_ratio_by_full": picked["speedup"],
        "same": (best["candidate"] if best else PLAIN) == tuned["winner"],
    }
    text = json.dumps(found, indent=1)
    if args.json is not None:
        args.json.write_text(text + "\n")
    print(text)


def _ratio(row: dict[str, Any]) -> float:
    return float(row["speedup"])


def tune(
    work: Workload, races: list[Sitting], opener: Opener, budget_s: float, folder: Path
) -> dict[str, Any]:
    """As the command does it; in memory only, nothing is recorded."""
    tuner = Tuner(work, races, opener.open, budget_s, folder)
    tuner.run()
    return outcome(tuner, []).as_dict()


def full_bench(
    work: Workload, races: list[Sitting], opener: Opener, args: argparse.Namespace, folder: Path
) -> dict[str, dict[str, Any]]:
    """Every way of every sitting, with the bench's own comparison."""
    categories = {prompt.id: prompt.category for prompt in work.suite.prompts}
    options = RunOptions(args.pairs, max_tokens=args.max_tokens)
    rows: dict[str, dict[str, Any]] = {}
    for number, sitting in enumerate(races):
        file = SampleFile(folder / f"{number}.jsonl", {"sitting": sitting.name})
        with opener.open(sitting) as subjects:
            run = Runner(replace(work.suite), subjects, options, file).run()
        for way in sitting.ways:
            told = compare(run.samples, categories, PLAIN, way.label).speedup
            if told is not None:
                rows[way.label] = {
                    "candidate": way.label,
                    "speedup": told.ratio,
                    "low": told.low,
                    "high": told.high,
                }
    return rows


if __name__ == "__main__":
    main()
