"""A machine that others use: tokens per second by hand-set threads, and as Parlay follows the load.

python -m benchmarks.measurements.busy [TARGET.gguf] [--busy 0,1,2] [--rounds 8] [--out FILE]

One engine, one text a slice, ended by its tokens or by the clock, whichever comes first; slices in
turn, each round in another order. For each number of busy cores so many processes only compute. The
first text there begins in the second in which they do, with nothing known of such a load; it is
told apart. Tokens per second are those of a whole slice, reading its prompt included, and those
after its first token (`decoding`). With `--draft suffix` also what speculation is worth there.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any

from benchmarks.shared.arguments import parser_of
from benchmarks.shared.ratios import ratio_of_prompts, recorded
from benchmarks.shared.record import keep
from parlay import Parlay
from parlay.bench.suite import load_suite
from parlay.control.crew import Crew, crews
from parlay.control.crew_choice import CrewChoice
from parlay.engine.crews import Crews
from parlay.llama.threads import can_sleep

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


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of one text."""

    n_tokens: int
    first_s: float  # until its first token
    seconds: float

    @property
    def rate(self) -> float:
        return self.n_tokens / self.seconds

    @property
    def decoding(self) -> float:
        """0 where the clock ended it at its first token."""
        took = self.seconds - self.first_s
        return (self.n_tokens - 1) / took if took > 0 else 0.0


class Slices:
    """Texts of so many tokens and seconds at most, by one crew or by whichever is chosen."""

    def __init__(self, parlay: Parlay, draft: str, n_tokens: int, seconds: float) -> None:
        self._parlay = parlay
        self._options = {"draft": draft, "max_tokens": n_tokens}
        self._seconds = seconds
        self._prompts = load_suite("core-12").prompts
        self._n = 0

    @property
    def crews(self) -> Crews:
        return self._parlay.engine.crews

    def make(self, choice: CrewChoice, i: int) -> Slice:
        """Of the suite's i-th prompt, read anew: a number stands before it."""
        self.crews.choice, self._n = choice, self._n + 1
        asked = self._prompts[i % len(self._prompts)].messages[-1]["content"]
        started, first_s = perf_counter(), 0.0
        stream = self._parlay.stream(
            [{"role": "user", "content": f"{self._n}. {asked}"}], temperature=0, **self._options
        )
        for n_pieces, _piece in enumerate(stream):
            first_s = first_s if n_pieces else perf_counter() - started
            if perf_counter() - started >= self._seconds:
                break
        n_tokens = stream.answer.speculation.n_generated  # once its last pass is over
        return Slice(n_tokens, first_s, perf_counter() - started)


def measure(slices: Slices, busy: list[int], n_rounds: int) -> Iterator[Any]:
    """One record per number of busy cores."""
    following = slices.crews.choice
    by_hand = crews(following.rule.threads, can_sleep=can_sleep())
    subjects = {FOLLOWING: following, **{name_of(c): CrewChoice([c]) for c in by_hand}}
    for n in busy:
        found: dict[str, list[Slice]] = {name: [] for name in subjects}
        with burning(n):
            first = slices.make(following, 0)
            for i in range(n_rounds):
                for name, choice in _turned(list(subjects.items()), i):
                    found[name].append(slices.make(choice, i + 1))
                    print(n, name, f"{found[name][-1].rate:.1f}", file=sys.stderr, flush=True)
        yield record(n, first, found, following)


def _turned(subjects: list[tuple[str, CrewChoice]], i: int) -> list[tuple[str, CrewChoice]]:
    """Each begins once: what runs before a subject must not always be the same."""
    at = i % len(subjects)
    return subjects[at:] + subjects[:at]


def record(
    n: int, first: Slice, found: dict[str, list[Slice]], following: CrewChoice
) -> dict[str, Any]:
    return {
        "busy_cores": n,
        "first_text": {"rate": round(first.rate, 1), "decoding": round(first.decoding, 1)},
        **{figure: _compared(figure, found, following) for figure in ("rate", "decoding")},
        "ended_with": name_of(following.chosen),
    }


def _compared(figure: str, found: dict[str, list[Slice]], following: CrewChoice) -> dict[str, Any]:
    """Means, and the ratios of slices that lie next to each other, with their intervals."""
    rates = {name: [getattr(each, figure) for each in made] for name, made in found.items()}
    means = {name: round(fmean(each), 1) for name, each in rates.items()}
    own = rates.pop(FOLLOWING)
    best, rule = max(rates, key=lambda name: fmean(rates[name])), name_of(following.rule)
    return {
        "means": means,
        "best_by_hand": best,
        "of_best": recorded(ratio_of_prompts(own, rates[best])),
        "of_rule": recorded(ratio_of_prompts(own, rates[rule])),
        "slices": {FOLLOWING: _rounded(own)} | {name: _rounded(r) for name, r in rates.items()},
    }


def _rounded(rates: list[float]) -> list[float]:
    return [round(rate, 1) for rate in rates]


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("target", nargs="?", default="default", help="GGUF file")
    parser.add_argument("--busy", default="0,1,2", help="cores that others use, in turn")
    parser.add_argument("--rounds", type=int, default=8, help="slices of each")
    parser.add_argument("--tokens", type=int, default=48, help="of one slice at most")
    parser.add_argument("--seconds", type=float, default=6.0, help="of one slice at most")
    parser.add_argument("--draft", default="none", help="none, suffix, or a drafter's file")
    parser.add_argument("--mode", default=None, choices=("exact", "faithful"))
    parser.add_argument("--out", type=Path, help="JSON; else it is printed")
    args = parser.parse_args()
    found: list[Any] = []
    with Parlay(args.target, draft=args.draft, context_size=1024, mode=args.mode) as parlay:
        slices = Slices(parlay, args.draft, args.tokens, args.seconds)
        for each in measure(slices, [int(n) for n in args.busy.split(",")], args.rounds):
            found.append(each)
            keep(args.out, found)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
