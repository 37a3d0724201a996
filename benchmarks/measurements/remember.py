"""What it is worth to remember earlier answers: prompts asked again with a small change.

Two runtimes of the default model, one with a memory; both have answered every prompt once. Ratios
of tokens per second by category, and whether the texts are equal.

Example: python -m benchmarks.measurements.remember
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from benchmarks.shared.arguments import parser_of
from benchmarks.shared.ratios import ratio_of_prompts, shown
from parlay import Parlay
from parlay.bench.suite import Prompt, load_suite

CATEGORIES = ("code-editing", "agent", "extraction", "boilerplate", "multi-turn")
CHANGE = "\nBe brief."


def changed(prompt: Prompt) -> list[dict[str, Any]]:
    messages = [dict(message) for message in prompt.messages]
    messages[-1]["content"] = (messages[-1].get("content") or "") + CHANGE
    return messages


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--model", default="default")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--remember", type=int, default=65536)
    args = parser.parse_args()
    prompts = [p for p in load_suite("core-60").prompts if p.category in CATEGORIES]
    speeds: dict[str, list[tuple[float, float]]] = defaultdict(list)
    with (
        Parlay(args.model) as without,
        Parlay(args.model, remember_tokens=args.remember) as remembering,
    ):
        both = (without, remembering)
        for prompt in prompts:
            for parlay in both:
                parlay.generate(list(prompt.messages), temperature=0, max_tokens=args.tokens)
        n_same = 0
        for i, prompt in enumerate(prompts):
            order = both if i % 2 else both[::-1]  # so that drift hits both alike
            found = {
                p: p.generate(changed(prompt), temperature=0, max_tokens=args.tokens) for p in order
            }
            plain, helped = (found[p] for p in both)
            both_speeds = (helped.tokens_per_second, plain.tokens_per_second)
            speeds[prompt.category].append(both_speeds)
            n_same += plain.text == helped.text
            print(f"{prompt.id:16} {both_speeds[0] / both_speeds[1]:.3f}", flush=True)
    for category, found_speeds in speeds.items():
        print(f"{category:16} {_over(found_speeds)}")
    everything = [pair for pairs in speeds.values() for pair in pairs]
    print(f"all {_over(everything)}, {n_same} of {len(prompts)} texts equal")


def _over(speeds: Sequence[tuple[float, float]]) -> str:
    return shown(ratio_of_prompts([a for a, _ in speeds], [b for _, b in speeds]))


if __name__ == "__main__":
    main()
