"""What a pass costs by its sequences and rows, up to 512 rows: a cost table for `parlay plan`.

  python -m benchmarks.measurements.batch_costs MODEL.gguf --name gpu-27b-batch \
      --out gpu-27b-batch.json \
      --origin "Measured: a 27B stand-in at Q5_0 with llama.cpp on one H200."

Sequences in powers of two and around the steps of kernels, windows of 0 to 16, after 64 and after
1024 tokens of text; what a prompt's chunk costs; with --draft also a drafter's step for so many
sequences. The file is in the format of src/parlay/control/data/costs. Takes a minute or two on a
GPU; a small CPU needs --sequences 16 --contexts 64.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks.shared.arguments import parser_of
from parlay.hub.resolving import resolve_model
from parlay.timing.batch_table import WantedTable, measure_table


def arguments() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("model", help="GGUF file, or default")
    parser.add_argument("--draft", help="the drafter's GGUF file")
    parser.add_argument("--name", default="measured")
    parser.add_argument("--origin", default="measured by benchmarks/measurements/batch_costs.py")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--sequences", type=int, default=256, help="at most")
    parser.add_argument("--contexts", default="64,1024", help="tokens in the cache")
    parser.add_argument("--times", type=int, default=3, help="passes of each shape")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--budget-s", type=float, default=240.0)
    return parser.parse_args()


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    given = arguments()
    wanted = WantedTable(
        target=resolve_model(given.model),
        drafter=resolve_model(given.draft) if given.draft else None,
        max_sequences=given.sequences,
        contexts=tuple(int(part) for part in given.contexts.split(",")),
        n_times=given.times,
        budget_s=given.budget_s,
        threads=given.threads,
        name=given.name,
        origin=given.origin,
    )
    found = measure_table(wanted, say)
    text = json.dumps(found.to_dict(), indent=2) + "\n"
    if given.out:
        given.out.write_text(text, "utf-8")
        say(f"wrote {given.out}; stable: {found.stable}")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
