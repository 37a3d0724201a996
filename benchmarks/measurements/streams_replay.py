"""The account of many streams by recorded prices: every round counted, none timed.

    python -m benchmarks.measurements.streams_replay --streams 1 8 16 --search-us 125

Answers that were recorded with the default model, by the prompts of `load` (a stand-in says the
same), are asked for at once, by prices of an H200. A pass is cut, padded and priced as the runtime
does it; a search takes --search-us for each sequence, 125 on that machine's cold caches
(`round_cost`). Over plain decoding's time, with what came of it: the share of the time that
searches took, rounds with bets, tokens drafted and accepted. `queue`: all answers through as many
slots, so that whoever ends makes room.

    python -m benchmarks.measurements.streams_replay --record src/parlay/replay/data/bursts
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from benchmarks.measurements.load import TEXTS, Cell, prompt
from benchmarks.shared.arguments import parsed, parser_of
from benchmarks.shared.record import keep
from parlay.control.controller import FixedWindow
from parlay.control.prices.cost import CostTable, shipped_tables
from parlay.control.profit import ProfitController
from parlay.decoding.round import Round
from parlay.parlay import Parlay
from parlay.replay.recording import Recording, burst, mixed_workload, save_recordings
from parlay.replay.replay import Replay
from parlay.replay.searching import SearchCost
from parlay.replay.texts import recorded

QUEUE = "queue"
N_RECORDED, DEPTH, ANSWER = 8, 500, 96


@dataclass(slots=True)
class Account:
    """What a replay came to."""

    text: str
    streams: int
    over_plain: float = 0.0
    n_rounds: int = 0
    n_bets: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    search_s: float = 0.0
    seconds: float = 0.0

    def observe(self, rounds: Sequence[Round]) -> None:
        """The rounds of one pass."""
        timing = rounds[0].timing
        self.n_rounds += 1
        self.n_bets += any(r.n_drafted for r in rounds)
        self.n_drafted += sum(r.n_drafted for r in rounds)
        self.n_accepted += sum(r.n_accepted for r in rounds)
        self.search_s += timing.draft_s  # free proposers only: all of it is searching
        self.seconds += timing.total_s


def account(text: str, streams: int, costs: CostTable, search: SearchCost) -> Account:
    """The controller from nothing, over plain decoding."""
    replay = Replay(_answers(text, streams), ("suffix",))
    plain = replay.run_together(FixedWindow(0), costs, streams)
    found, controller = Account(text, streams), ProfitController(costs.copy())
    made = replay.run_together(controller, costs, streams, search=search, listeners=(found,))
    found.over_plain = plain.seconds / made.seconds
    return found


def _answers(text: str, streams: int) -> list[Recording]:
    if text == QUEUE:
        return mixed_workload()
    known = burst(text)
    return [known[i % len(known)] for i in range(streams)]


def record(folder: Path) -> None:
    """What the default model says to the prompts of `load`, and what would have been drafted."""
    with Parlay(target="default", draft="none", context_size=1024, mode="faithful") as parlay:
        for text in TEXTS:
            made = []
            for i in range(N_RECORDED):
                asked = prompt(Cell(N_RECORDED, DEPTH, ANSWER, text), i, 6)
                answer = parlay.generate(asked, max_tokens=ANSWER + 1, temperature=0.0)
                made.append(recorded(f"{text}-{i}", parlay.tokens(asked), answer.tokens))
            save_recordings(folder / f"{text}.jsonl.gz", {"text": text, "depth": DEPTH}, made)


def main(argv: Sequence[str] | None = None) -> None:
    args = _arguments(argv)
    if args.record:
        record(args.record)
        return
    costs = next(table for table in shipped_tables() if table.name == args.prices)
    search = SearchCost(args.search_us / 1e6, args.idle_us / 1e6, beside=True)
    found = [account(text, n, costs, search) for n, text in product(args.streams, args.texts)]
    for each in found:
        print(
            f"{each.streams:3} streams, {each.text:8} {each.over_plain:.3f} of plain;"
            f" searches {each.search_s / each.seconds:.1%}, bets in {each.n_bets} of"
            f" {each.n_rounds} rounds, {each.n_drafted} drafted, {each.n_accepted} accepted"
        )
    keep(args.json, found)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--texts", choices=(*TEXTS, QUEUE), nargs="+", default=[*TEXTS, QUEUE])
    parser.add_argument("--prices", default="gpu-8b-q5_0-streams", help="a shipped table")
    parser.add_argument("--search-us", type=float, default=125.0, help="for each sequence")
    parser.add_argument("--idle-us", type=float, default=0.0, help="a round without a search")
    parser.add_argument("--record", type=Path, metavar="FOLDER", help="record the texts anew")
    return parsed(parser, argv)


if __name__ == "__main__":
    main()
