"""Time from starting the server to its first answer: two models against the target alone.

Interleaved pairs, each with a fresh process; the ratio of each pair and their median.

  python -m benchmarks.measurements.cold_start --model default --drafter drafter.gguf --pairs 12
"""

from __future__ import annotations

import argparse
import math
import statistics
from time import perf_counter

import httpx

from benchmarks.shared import served
from parlay.hub.resolving import resolve_model

BODY = {"prompt": "Hello", "max_tokens": 8, "temperature": 0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="default")
    parser.add_argument("--drafter", required=True)
    parser.add_argument("--pairs", type=int, default=12)
    args = parser.parse_args()
    drafts = ("suffix", args.drafter)
    for draft in drafts:  # files into the page cache, shapes into ours
        first_answer_s(args.model, draft)
    ratios = []
    for i in range(args.pairs):
        order = drafts if i % 2 == 0 else drafts[::-1]
        took = {draft: first_answer_s(args.model, draft) for draft in order}
        ratios.append(took[args.drafter] / took["suffix"])
        print(f"target alone {took['suffix']:.2f} s, two models {took[args.drafter]:.2f} s")
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    print(f"ratio: median {statistics.median(ratios):.3f}, geometric mean {mean:.3f}")


def first_answer_s(model: str, draft: str) -> float:
    began = perf_counter()
    flags = ["--model", str(resolve_model(model)), "--draft", draft, "--port", "0"]
    with served.parlay(*flags, "--slots", "1", "--context-size", "1024") as server:
        answer = httpx.post(f"{server.url}/v1/completions", json=BODY, timeout=300)
        answer.raise_for_status()
        return perf_counter() - began


if __name__ == "__main__":
    main()
