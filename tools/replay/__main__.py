"""Plays the controller over recorded answers and tables of prices, and holds it to what it made.

    python -m tools.replay one --sets close --tables gpu-27b-q5_0      # a table, told in lines
    python -m tools.replay several --streams 2 8                       # bursts and queues
    python -m tools.replay gates                                       # all of it, two minutes

`gates` fails unless the geometric mean over all tables is 0.99 of the baseline, kept and fresh, no
answer of 25 tokens or more is below 0.93 of plain, and bursts make what the baseline makes. The
baseline is a commit's figures (`baseline.json`): the same code gives the same figures anywhere.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parlay.control.budget import BudgetController
from parlay.control.prices.cost import CostTable, shipped_tables
from tools.replay.recording import Recording, burst, mixed_workload
from tools.replay.world import Outcome, SearchCost, World

BASELINE: dict[str, Any] = json.loads((Path(__file__).parent / "baseline.json").read_text("utf-8"))
SETS = {
    "free": ("ngram", "suffix"),
    "close": ("ngram", "suffix", "model"),
    "real": ("ngram", "suffix", "pruned"),
}
STATES = ("kept", "fresh")
STREAMS, LENGTHS, TEXTS = (2, 4, 8, 16), (96, 400), ("chat", "edit", "extract")
SEVERAL = "gpu-8b-q5_0-streams"
SEARCH = SearchCost(125e-6, beside=True)  # as long as a search took on that machine's cold caches
SHORT = 25  # tokens: of shorter answers nothing is promised
GM, LEAST = 0.99, 0.93


@dataclass(frozen=True, slots=True)
class Row:
    """One table, set of proposers and state."""

    name: str
    over_baseline: float
    over_plain: float
    least: float  # of one answer over plain
    least_id: str


def plain_s(recording: Recording, costs: CostTable) -> float:
    """Seconds of one answer without drafts; its first pass changes the shape of the prompt's."""
    curve, n = costs.curve(recording.n_prompt, 1), recording.n_tokens
    return curve.changed[1] + (n - 1) * curve.steady[1] + (curve.settling_s if n > 1 else 0.0)


def play_one(
    costs: CostTable, proposers: tuple[str, ...], state: str, recordings: Sequence[Recording]
) -> list[Outcome]:
    """One answer after the other, by one controller or each by a new one."""
    if state == "kept":
        return World(costs, proposers).play(BudgetController(costs.copy()), recordings)
    return [
        World(costs, proposers).burst(BudgetController(costs.copy()), [recording])
        for recording in recordings
    ]


def one_stream(sets: Sequence[str], states: Sequence[str], tables: Sequence[str]) -> Iterator[Row]:
    recordings = mixed_workload()
    for costs in shipped_tables():
        for label in sets if not tables or costs.name in tables else ():
            for state in states:
                name = f"{costs.name}/{label}/{state}"
                made = play_one(costs, SETS[label], state, recordings)
                plain = [plain_s(recording, costs) for recording in recordings]
                seconds = sum(outcome.seconds for outcome in made)
                least = min(
                    (p / o.seconds, r.id)
                    for p, o, r in zip(plain, made, recordings, strict=True)
                    if r.n_tokens >= SHORT
                )
                before_s = BASELINE["one"][name]["seconds"]
                yield Row(name, before_s / seconds, sum(plain) / seconds, *least)


def several(streams: Sequence[int], lengths: Sequence[int]) -> Iterator[tuple[str, float, float]]:
    """Bursts: sixteen answers of each text, so many at a time; over plain now, and the baseline."""
    costs, proposers = named(SEVERAL), ("suffix",)
    for length in lengths:
        known = {text: [r.first(length) for r in burst(text)] for text in TEXTS}
        for n in streams:
            for state in STATES:
                controller, made = BudgetController(costs.copy()), dict.fromkeys(TEXTS, 0.0)
                for at in range(0, 16, n):
                    for text in TEXTS:
                        if state == "fresh":
                            controller = BudgetController(costs.copy())
                        world = World(costs, proposers, search=SEARCH)
                        made[text] += world.burst(controller, known[text][at : at + n]).seconds
                for text in TEXTS:
                    name = f"{text}/{length}/{n}/{state}"
                    plain, before = BASELINE["bursts"][name]
                    yield name, plain / made[text], plain / before


def queues(streams: Sequence[int]) -> Iterator[tuple[str, float, float]]:
    """All recordings through so many slots, so that whoever ends makes room."""
    costs = named(SEVERAL)
    for n in streams:
        for proposers in (("suffix",), SETS["real"], SETS["close"]):
            name = f"{proposers[-1]}/{n}"
            search = SEARCH if len(proposers) == 1 else None
            world = World(costs, proposers, search=search)
            made = world.burst(BudgetController(costs.copy()), mixed_workload(), n)
            plain, before = BASELINE["queue"][name]
            yield name, plain / made.seconds, plain / before


def named(name: str) -> CostTable:
    return next(table for table in shipped_tables() if table.name == name)


def mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def told_one(rows: Sequence[Row]) -> bool:
    """Every row in a line, and whether the gates of one stream hold."""
    holds = True
    for row in rows:
        print(
            f"{row.name:42} {row.over_baseline:.3f} of the baseline, {row.over_plain:.2f} of plain,"
            f" least {row.least:.3f} ({row.least_id})"
        )
    for state in STATES:
        of_state = [row for row in rows if row.name.endswith(state)]
        if of_state:
            found = mean([row.over_baseline for row in of_state])
            least = min(row.least for row in of_state)
            print(f"{state}: {found:.4f} of the baseline, least {least:.3f} of plain")
            holds = holds and found >= GM and least >= LEAST
    return holds


def told_several(label: str, rows: Sequence[tuple[str, float, float]]) -> bool:
    for name, now, before in rows:
        print(f"{label} {name:20} {now:.3f} of plain, the baseline {before:.3f}")
    now, before = mean([row[1] for row in rows]), mean([row[2] for row in rows])
    print(f"{label}: {now:.4f} of plain, the baseline {before:.4f}")
    return now >= before


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.replay", description=__doc__)
    parser.add_argument("what", choices=("one", "several", "gates"))
    parser.add_argument("--sets", nargs="+", choices=SETS, default=[*SETS])
    parser.add_argument("--states", nargs="+", choices=STATES, default=[*STATES])
    parser.add_argument("--tables", nargs="+", default=[], help="absent: all that are shipped")
    parser.add_argument("--streams", nargs="+", type=int, choices=STREAMS, default=[*STREAMS])
    parser.add_argument("--lengths", nargs="+", type=int, choices=LENGTHS, default=[*LENGTHS])
    args = parser.parse_args()
    holds = True
    if args.what != "several":
        holds = told_one([*one_stream(args.sets, args.states, args.tables)])
    if args.what != "one":
        holds = told_several("burst", [*several(args.streams, args.lengths)]) and holds
        holds = told_several("queue", [*queues(args.streams)]) and holds
    return 0 if holds or args.what != "gates" else 1


if __name__ == "__main__":
    sys.exit(main())
