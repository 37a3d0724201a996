"""Time from starting the server to its first answer: two models against the target alone.

Interleaved pairs, each with a fresh process; their ratio with its interval.

  python -m benchmarks.measurements.cold_start --model default --drafter drafter.gguf --pairs 12
"""

from __future__ import annotations

from time import perf_counter

import httpx

from benchmarks.shared import served
from benchmarks.shared.arguments import parser_of
from benchmarks.shared.ratios import ratio_of_repeats, shown
from parlay.hub.resolving import resolve_model

BODY = {"prompt": "Hello", "max_tokens": 8, "temperature": 0}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--model", default="default")
    parser.add_argument("--drafter", required=True)
    parser.add_argument("--pairs", type=int, default=12)
    args = parser.parse_args()
    drafts = ("suffix", args.drafter)
    for draft in drafts:  # files into the page cache, shapes into ours
        first_answer_s(args.model, draft)
    seconds: dict[str, list[float]] = {draft: [] for draft in drafts}
    for i in range(args.pairs):
        order = drafts if i % 2 == 0 else drafts[::-1]
        took = {draft: first_answer_s(args.model, draft) for draft in order}
        for draft in drafts:
            seconds[draft].append(took[draft])
        print(f"target alone {took['suffix']:.2f} s, two models {took[args.drafter]:.2f} s")
    over = ratio_of_repeats(seconds[args.drafter], seconds["suffix"])
    print(f"two models over the target alone: {shown(over)}")


def first_answer_s(model: str, draft: str) -> float:
    began = perf_counter()
    flags = ["--model", str(resolve_model(model)), "--draft", draft, "--port", "0"]
    with served.parlay(*flags, "--slots", "1", "--context-size", "1024") as server:
        answer = httpx.post(f"{server.url}/v1/completions", json=BODY, timeout=300)
        answer.raise_for_status()
        return perf_counter() - began


if __name__ == "__main__":
    main()
