"""What a pass over several tokens costs a mixture of experts, and whether the controller knows.

  python -m benchmarks.models.stand_ins --kind mixture --preset 30b --out /dev/shm/mixture-30b.gguf
  python -m benchmarks.measurements.mixture --model /dev/shm/mixture-30b.gguf --n-cpu-moe 0 24 -1

For each number of layers whose experts stay in RAM: T(b), a pass over b rows of real text in passes
over one row, beside the same with tokens that all are equal (few experts) and tokens that jump
about the vocabulary (many); then the controller with suffix drafts beside plain decoding, pair by
pair. `--dense FILE` adds a dense model's T(b).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.measurements.block_pair import PROMPTS
from benchmarks.shared.arguments import parser_of
from benchmarks.shared.ratios import ratio_of_prompts, recorded
from parlay import Parlay
from parlay.llama.context import Context
from parlay.llama.model import Model
from parlay.llama.settings import ContextSettings, ModelSettings
from parlay.timing.measuring import Stopwatch, measure
from parlay.timing.probe_text import probe_tokens

ROWS = (1, 2, 3, 4, 5, 8, 9, 16, 17)


@dataclass(frozen=True, slots=True)
class Costs:
    """One setting."""

    model: str
    n_cpu_moe: int
    plain_ms: float
    real: dict[int, float]  # T(b) by rows, in plain passes
    equal: dict[int, float]
    scattered: dict[int, float]


@dataclass(frozen=True, slots=True)
class Speed:
    """The controller beside plain decoding."""

    n_cpu_moe: int
    plain_tps: float
    controller_tps: float
    ratio: dict[str, float]  # with its interval
    same_text: bool


def costs(path: Path, n_cpu_moe: int, budget_s: float) -> Costs:
    """T(b) with three kinds of text."""
    with Model(path, ModelSettings(n_cpu_moe=n_cpu_moe)) as model:
        context = Context(model, ContextSettings(512, n_batch=64, n_outputs=64))
        try:
            texts = {
                "real": context.sample,
                "equal": (context.sample[0],) * 64,
                "scattered": tuple(probe_tokens(1024, context.n_vocab)),
            }
            found = {}
            for name, text in texts.items():
                context.sample = text
                table = measure(
                    Stopwatch(context), None, max_window=max(ROWS) - 1, budget_s=budget_s
                )
                found[name] = {b: table.curve(1, 1).steady[b] for b in ROWS}
        finally:
            context.close()
    plain = found["real"][1]
    shares = {name: {b: s / plain for b, s in t.items()} for name, t in found.items()}
    return Costs(path.name, n_cpu_moe, 1e3 * plain, **shares)


def speed(path: Path, n_cpu_moe: int, n_tokens: int, n_prompts: int) -> Speed:
    """Answers in pairs, one plain and one with the controller, each first in turn."""
    seconds: dict[str, list[float]] = {"none": [], "suffix": []}
    same, n = True, 0
    with Parlay(
        path,
        draft="suffix",
        n_cpu_moe=n_cpu_moe,
        context_size=2048,
        mode="faithful",
        measure_again=True,
    ) as parlay:
        parlay.generate(PROMPTS[0], raw=True, temperature=0, max_tokens=n_tokens)  # warm
        for i, prompt in enumerate(PROMPTS[:n_prompts]):
            order = ("none", "suffix") if i % 2 else ("suffix", "none")
            made = {
                draft: parlay.generate(
                    prompt, raw=True, temperature=0, max_tokens=n_tokens, draft=draft
                )
                for draft in order
            }
            for draft, answer in made.items():
                seconds[draft].append(answer.decode_s)
            n += len(made["none"].tokens)
            same = same and made["none"].text == made["suffix"].text
    plain, betting = seconds.values()
    ratio = recorded(ratio_of_prompts(plain, betting))
    return Speed(n_cpu_moe, n / sum(plain), n / sum(betting), ratio, same)


def main() -> None:
    args = _arguments()
    tables: list[Costs] = []
    speeds: list[Speed] = []
    for n in args.n_cpu_moe:
        tables.append(costs(args.model, n, args.budget_s))
        _keep(args, tables, speeds)
        speeds.append(speed(args.model, n, args.tokens, args.prompts))
        _keep(args, tables, speeds)
    if args.dense is not None:
        tables.append(costs(args.dense, 0, args.budget_s))
        _keep(args, tables, speeds)
    _print(tables, speeds)


def _keep(args: argparse.Namespace, tables: Sequence[Costs], speeds: Sequence[Speed]) -> None:
    """What there is so far, should it be cut short."""
    print(f"{len(tables)} tables, {len(speeds)} speeds", file=sys.stderr)
    if args.json is not None:
        record = {"costs": [asdict(t) for t in tables], "speeds": [asdict(s) for s in speeds]}
        args.json.write_text(json.dumps(record, indent=1))


def _print(tables: Sequence[Costs], speeds: Sequence[Speed]) -> None:
    rows = " | ".join(f"T({b})" for b in ROWS[1:])
    print(f"| model | experts in RAM | text | T(1) ms | {rows} |")
    print("|---|---|---|---|" + "---|" * len(ROWS[1:]))
    for t in tables:
        for name in ("real", "equal", "scattered"):
            shares = getattr(t, name)
            cells = " | ".join(f"{shares[b]:.2f}" if b in shares else "" for b in ROWS[1:])
            print(f"| {t.model} | {t.n_cpu_moe} | {name} | {t.plain_ms:.2f} | {cells} |")
    print("\n| experts in RAM | plain tok/s | controller tok/s | ratio |")
    print("|---|---|---|---|")
    for s in speeds:
        print(
            f"| {s.n_cpu_moe} | {s.plain_tps:.1f} | {s.controller_tps:.1f} |"
            f" {s.ratio['ratio']:.3f} [{s.ratio['low']:.3f}, {s.ratio['high']:.3f}] |"
        )


def _arguments() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--model", type=Path, required=True, help="a mixture's GGUF")
    parser.add_argument("--dense", type=Path, help="a dense model beside it")
    parser.add_argument("--n-cpu-moe", type=int, nargs="+", default=[0], help="-1: all layers")
    parser.add_argument("--budget-s", type=float, default=20.0, help="of one table")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--prompts", type=int, default=len(PROMPTS))
    parser.add_argument("--json", type=Path, help="where the record goes")
    return parser.parse_args()


if __name__ == "__main__":
    main()
