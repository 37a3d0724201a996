"""Two slow facts: memory over 2,000 rounds, and acceptance by coupled drawing and by rejection.

python -m benchmarks.measurements.steady [TARGET.gguf] [DRAFTER.gguf]
"""

from __future__ import annotations

import psutil

from benchmarks.shared.arguments import parser_of
from parlay import Parlay
from parlay.bench.suite import load_suite

N_ROUNDS = 2000


def memory(parlay: Parlay) -> None:
    """Resident memory while answers go on, past the end of the context."""
    process, n_rounds = psutil.Process(), 0
    marks: list[tuple[int, int]] = []
    prompts = load_suite("core-12").prompts
    while n_rounds < N_ROUNDS:
        prompt = prompts[len(marks) % len(prompts)]
        answer = parlay.generate(list(prompt.messages), max_tokens=200, draft="suffix", window=4)
        n_rounds += answer.speculation.n_rounds
        marks.append((n_rounds, process.memory_info().rss >> 20))
    print("rounds and MiB:", marks[0], marks[len(marks) // 2], marks[-1])


def acceptance(parlay: Parlay) -> None:
    """The same prompts, seeds and drafts' length, both ways of verifying."""
    for way in ("coupled", "rejection"):
        for temperature in (0.8, 1.0):
            drafted = accepted = 0
            for seed, prompt in enumerate(load_suite("core-12").prompts[:6]):
                counts = parlay.generate(
                    list(prompt.messages), max_tokens=64, draft="model", window=3, seed=seed,
                    temperature=temperature, verification=way,
                ).speculation  # fmt: skip
                drafted, accepted = drafted + counts.n_drafted, accepted + counts.n_accepted
            print(f"{way} at {temperature}: {accepted / drafted:.3f} of {drafted}", flush=True)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("target", nargs="?", default="default", help="GGUF file")
    parser.add_argument("drafter", nargs="?", help="GGUF file; without it, memory only")
    args = parser.parse_args()
    draft = f"suffix,{args.drafter}" if args.drafter else "suffix"
    with Parlay(args.target, draft=draft, context_size=1024) as parlay:
        if args.drafter:
            acceptance(parlay)
        memory(parlay)


if __name__ == "__main__":
    main()
