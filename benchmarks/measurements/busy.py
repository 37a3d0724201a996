"""A machine that others use: tokens per second by hand-set threads, and as Parlay follows the load.

python -m benchmarks.measurements.busy [TARGET.gguf] [--busy 0,1,2] [--rounds 3] [--out FILE]

One engine, short slices in turn, each round in another order; for each number of busy cores so many
processes that only compute. With `--draft suffix` also what speculation is worth there.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, median
from time import perf_counter
from typing import Any

from benchmarks.shared.arguments import parser_of
from parlay import Parlay
from parlay.bench.suite import load_suite
from parlay.control.crew import Crew, CrewChoice, crews
from parlay.llama.threads import can_sleep
from parlay.runtime.crews import Crews

N_TOKENS = 48
FOLLOWING = "following"
BURN = "while True: pass"


@contextmanager
def burning(n: int) -> Iterator[None]:
    """So many cores kept busy by others."""
    command = [sys.executable, "-c", BURN]
    burners = [subprocess.Popen(command) for _ in range(n)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def name_of(crew: Crew) -> str:
    return f"{crew.threads} {'asleep' if crew.sleeps else 'spinning'}"


class Slices:
    """Answers for so many seconds, by one crew or by whichever is chosen."""

    def __init__(self, parlay: Parlay, draft: str) -> None:
        self._parlay = parlay
        self._draft = draft
        self._prompts = load_suite("core-12").prompts
        self._n = 0

    @property
    def crews(self) -> Crews:
        return self._parlay.engine.crews

    def rate(self, choice: CrewChoice, seconds: float) -> float:
        self.crews.choice = choice
        started, n_tokens = perf_counter(), 0
        while perf_counter() - started < seconds:
            prompt = self._prompts[self._n % len(self._prompts)]
            answer = self._parlay.generate(
                list(prompt.messages), max_tokens=N_TOKENS, draft=self._draft
            )
            n_tokens += answer.speculation.n_generated
            self._n += 1
        return n_tokens / (perf_counter() - started)


def measure(slices: Slices, busy: list[int], n_rounds: int, seconds: float) -> Iterator[Any]:
    """One record per number of busy cores."""
    following = slices.crews.choice
    by_hand = crews(following.rule.threads, can_sleep=can_sleep())
    subjects = {FOLLOWING: following, **{name_of(c): CrewChoice([c]) for c in by_hand}}
    for n in busy:
        rates: dict[str, list[float]] = {name: [] for name in subjects}
        with burning(n):
            for i in range(n_rounds):
                for name, choice in _turned(list(subjects.items()), i):
                    rates[name].append(slices.rate(choice, seconds))
                    print(n, name, f"{rates[name][-1]:.1f}", file=sys.stderr, flush=True)
        yield record(n, rates, following)


def _turned(subjects: list[tuple[str, CrewChoice]], i: int) -> list[tuple[str, CrewChoice]]:
    """Each begins once: what runs before a subject must not always be the same."""
    at = i % len(subjects)
    return subjects[at:] + subjects[:at]


def record(n: int, rates: dict[str, list[float]], following: CrewChoice) -> dict[str, Any]:
    means = {name: round(fmean(found), 1) for name, found in rates.items()}
    own, today = means.pop(FOLLOWING), rates[name_of(following.rule)]
    pairs = sorted(mine / theirs for mine, theirs in zip(rates[FOLLOWING], today, strict=True))
    best = max(means, key=lambda name: means[name])
    return {
        "busy_cores": n,
        "by_hand": means,
        "best_by_hand": best,
        "following": own,
        "of_best": round(own / means[best], 3),
        "of_today": round(own / means[name_of(following.rule)], 3),
        "of_today_median_of_pairs": round(median(pairs), 3),
        "ended_with": name_of(following.chosen),
        "slices": {name: [round(rate, 1) for rate in found] for name, found in rates.items()},
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("target", nargs="?", default="default", help="GGUF file")
    parser.add_argument("--busy", default="0,1,2", help="cores that others use, in turn")
    parser.add_argument("--rounds", type=int, default=8, help="slices of each")
    parser.add_argument("--seconds", type=float, default=2.0, help="of one slice")
    parser.add_argument("--draft", default="none", help="none, suffix, or a drafter's file")
    parser.add_argument("--mode", default=None, choices=("exact", "faithful"))
    parser.add_argument("--out", type=Path, help="JSON; else it is printed")
    args = parser.parse_args()
    found: list[Any] = []
    with Parlay(args.target, draft=args.draft, context_size=1024, mode=args.mode) as parlay:
        slices = Slices(parlay, args.draft)
        for each in measure(
            slices, [int(n) for n in args.busy.split(",")], args.rounds, args.seconds
        ):
            found.append(each)
            if args.out:
                args.out.write_text(json.dumps(found, indent=1), "utf-8")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
