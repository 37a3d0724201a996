"""The same drafter in Parlay and in llama.cpp's own server: do both accept the same share?

For drafters that read the target's hidden states: DFlash, EAGLE-3, or a target's own NextN head
(name the target as its drafter). Greedy, the same prompts and window; ends with 1 where token
acceptance differs by more than two points.

    python -m benchmarks.proofs.state_drafters --target default --drafter block.gguf --window 4
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import httpx

from benchmarks.shared import served
from benchmarks.shared.arguments import parser_of
from benchmarks.shared.record import keep
from parlay import Parlay
from parlay.bench.peer import PeerSettings
from parlay.bench.suite import load_suite
from parlay.hub.resolving import resolve_model
from parlay.llama.facts import read_facts

POINTS = 2.0
SPEC_TYPES = {"dflash": "draft-dflash", "eagle3": "draft-eagle3"}


def main() -> int:
    args = _arguments()
    target = resolve_model(args.target)
    ours = _ours(args, target)
    theirs = _theirs(args, target, [row["prompt"] for row in ours])
    rows = [_row(mine, other) for mine, other in zip(ours, theirs, strict=True)]
    total = {side: _acceptance(rows, side) for side in ("parlay", "server")}
    for row in rows:
        print(
            f"{row['name']:24} {row['parlay'][1]:4}/{row['parlay'][0]:<4}"
            f" {row['server'][1]:4}/{row['server'][0]:<4} {'same' if row['same'] else 'other'} text"
        )
    apart = 100 * abs(total["parlay"] - total["server"])
    print(
        f"token acceptance: Parlay {total['parlay']:.2%}, llama.cpp's server"
        f" {total['server']:.2%}, {apart:.2f} points apart"
    )
    keep(args.json, {"rows": rows, **total})
    return int(apart > POINTS)


def _ours(args: argparse.Namespace, target: Path) -> list[dict[str, Any]]:
    prompts = load_suite(args.suite).prompts[: args.prompts]
    found = []
    with Parlay(
        target,
        draft=str(args.drafter),
        window=args.window,
        context_size=args.context,
        threads=args.threads,
        slots=1,
        cache_type_k="f16",  # as the server has it
        drafter_cache_type_k="f16",
    ) as parlay:
        for prompt in prompts:
            tokens = parlay.tokens(prompt.messages)
            answer = parlay.generate(prompt.messages, temperature=0, max_tokens=args.tokens)
            counts = answer.speculation
            found.append(
                {
                    "name": prompt.id,
                    "prompt": tokens,
                    "text": answer.text,
                    "counts": (counts.n_drafted, counts.n_accepted),
                }
            )
    return found


def _theirs(
    args: argparse.Namespace, target: Path, prompts: list[list[int]]
) -> list[dict[str, Any]]:
    own_head = args.drafter.samefile(target)
    kind = "draft-mtp" if own_head else SPEC_TYPES[read_facts(args.drafter).architecture]
    settings = PeerSettings(
        str(target),
        kind,
        None if own_head else str(args.drafter),
        n_max=args.window,
        n_context=args.context,
        threads=args.threads,
    )
    found = []
    with served.llama(settings, args.server) as url:
        for prompt in prompts:
            body = {"prompt": prompt, "n_predict": args.tokens, "temperature": 0}
            answer = httpx.post(f"{url}/completion", json=body, timeout=600).json()
            timings = answer["timings"]
            counts = (timings.get("draft_n", 0), timings.get("draft_n_accepted", 0))
            found.append({"text": answer["content"], "counts": counts})
    return found


def _row(mine: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": mine["name"],
        "parlay": mine["counts"],
        "server": other["counts"],
        "same": mine["text"] == other["text"],
    }


def _acceptance(rows: list[dict[str, Any]], side: str) -> float:
    drafted, accepted = (sum(row[side][i] for row in rows) for i in (0, 1))
    return accepted / drafted if drafted else 0.0


def _arguments() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--target", default="default")
    parser.add_argument("--drafter", type=Path, required=True)
    parser.add_argument("--window", type=int, default=4)
    parser.add_argument("--suite", default="core-12")
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--server", type=Path, help="llama-server; without it, xllamacpp's")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
