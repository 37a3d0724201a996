"""The account of many streams by recorded prices: every round counted, none timed.

    python -m benchmarks.measurements.streams_replay --streams 1 8 16 --search-us 125

Answers that were recorded with the default model, by the prompts of `load` (a stand-in says the
same), sixteen of each text, are asked for in bursts of so many streams, by prices of an H200. A
pass is cut, padded and priced as the runtime does it; a search takes --search-us for each sequence,
125 on that machine's cold caches (`round_cost`). Over plain decoding's time, with what came of it:
the share of the time that searches took, rounds with bets, tokens drafted and accepted; beside it
the one fixed window that would have been best for all of them, whose searches are charged, too.
`queue`: all answers through as many slots, so that whoever ends makes room. --kept: one controller
for all bursts, chat, edits and extraction in turn, as a server under `load` has; else a new one for
each. --changes-ms and --settling-ms: what these take, if not as in the table. --blind: to the
controller those of several sequences cost nothing, as to one that has not measured them.

    python -m benchmarks.measurements.streams_replay --record src/parlay/replay/data/bursts
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from benchmarks.measurements.load import TEXTS, Cell, prompt
from benchmarks.shared.arguments import parsed, parser_of
from benchmarks.shared.ratios import ratio_of_prompts
from benchmarks.shared.record import keep
from parlay.control.controller import FixedWindow
from parlay.control.prices.cost import CostTable, load_costs, shipped_tables
from parlay.control.profit import ProfitController
from parlay.decoding.round import Round
from parlay.parlay import Parlay
from parlay.replay.recording import burst, mixed_workload, save_recordings
from parlay.replay.replay import Replay
from parlay.replay.searching import SearchCost
from parlay.replay.texts import recorded

QUEUE = "queue"
N_RECORDED, DEPTH, ANSWER = 16, 500, 400
WINDOWS = (1, 2, 4, 8, 16)


@dataclass(slots=True)
class Account:
    """What a replay came to."""

    text: str
    streams: int
    search_us: float  # for each sequence
    plain_s: float = 0.0
    least: float = math.inf  # of plain decoding's speed, in one burst
    fixed: float = 0.0  # the best fixed window over plain decoding
    fixed_window: int = 0
    n_rounds: int = 0
    n_bets: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    search_s: float = 0.0
    seconds: float = 0.0

    @property
    def over_plain(self) -> float:
        return self.plain_s / self.seconds

    def observe(self, rounds: Sequence[Round]) -> None:
        """The rounds of one pass."""
        timing = rounds[0].timing
        self.n_rounds += 1
        self.n_bets += any(r.n_drafted for r in rounds)
        self.n_drafted += sum(r.n_drafted for r in rounds)
        self.n_accepted += sum(r.n_accepted for r in rounds)
        self.search_s += timing.draft_s  # free proposers only: all of it is searching
        self.seconds += timing.total_s


@dataclass(frozen=True, slots=True)
class World:
    """What all replays have in common."""

    costs: CostTable
    believed: CostTable  # by the controller, at first
    search: SearchCost
    answer: int  # most tokens of each answer
    kept: bool  # one controller for all bursts, else a new one for each


def accounts(texts: Sequence[str], streams: int, world: World) -> list[Account]:
    """The controller, and the best fixed window, over plain decoding: all answers of each text in
    bursts of so many; those of different texts come in turn."""
    search_us = 1e6 * world.search.each_s
    found = {text: Account(text, streams, search_us) for text in texts}
    bursts = {text: _bursts(text, streams, world.answer) for text in texts}
    controller = ProfitController(world.believed.copy())
    for turn in zip_longest(*bursts.values()):
        for text, replay in zip(texts, turn, strict=True):
            if replay is not None:
                if not world.kept:
                    controller = ProfitController(world.believed.copy())
                _play(found[text], replay, controller, world)
    for account in found.values():
        account.fixed, account.fixed_window = _best_fixed(bursts[account.text], account, world)
    return list(found.values())


def _play(account: Account, replay: Replay, controller: ProfitController, world: World) -> None:
    costs, n = world.costs, account.streams
    plain_s = replay.run_together(FixedWindow(0), costs, n).seconds
    made = replay.run_together(controller, costs, n, search=world.search, listeners=(account,))
    account.plain_s += plain_s
    account.least = min(account.least, plain_s / made.seconds)


def _best_fixed(bursts: Sequence[Replay], account: Account, world: World) -> tuple[float, int]:
    """Over plain decoding, and the window."""

    def seconds(window: int) -> float:
        runs = (
            replay.run_together(
                FixedWindow(window), world.costs, account.streams, search=world.search
            )
            for replay in bursts
        )
        return sum(run.seconds for run in runs)

    return max((account.plain_s / seconds(window), window) for window in WINDOWS)


def _bursts(text: str, streams: int, most: int) -> list[Replay]:
    if text == QUEUE:
        return [Replay(mixed_workload(), ("suffix",))]
    known = [recording.first(most) for recording in burst(text)]
    return [Replay(known[i : i + streams], ("suffix",)) for i in range(0, len(known), streams)]


def record(folder: Path) -> None:
    """What the default model says to the prompts of `load`, and what would have been drafted.

    As there, no answer ends before its length.
    """
    with Parlay(target="default", draft="none", context_size=1536, mode="faithful") as parlay:
        unending = dict.fromkeys(parlay.engine.model.vocabulary.ends, -100.0)
        for text in TEXTS:
            made = []
            for i in range(N_RECORDED):
                asked = prompt(Cell(N_RECORDED, DEPTH, ANSWER, text), i, 6)
                answer = parlay.generate(
                    asked, max_tokens=ANSWER + 1, temperature=0.0, logit_bias=unending
                )
                made.append(recorded(f"{text}-{i}", parlay.tokens(asked), answer.tokens))
            save_recordings(folder / f"{text}.jsonl.gz", {"text": text, "depth": DEPTH}, made)


def main(argv: Sequence[str] | None = None) -> None:
    args = _arguments(argv)
    if args.record:
        record(args.record)
        return
    costs = _prices(args.prices, args.changes_ms, args.settling_ms)
    believed = _blind(costs) if args.blind else costs
    found = []
    for us in args.search_us:
        search = SearchCost(us / 1e6, args.idle_us / 1e6, beside=True)
        world = World(costs, believed, search, args.answer, args.kept)
        found += [each for n in args.streams for each in accounts(args.texts, n, world)]
    for each in found:
        print(
            f"{each.streams:3} streams, {each.text:8} {each.search_us:3.0f} us a search:"
            f" {each.over_plain:.3f} of plain"
            f" (a burst {each.least:.3f} at least; window {each.fixed_window}: {each.fixed:.3f});"
            f" searches {each.search_s / each.seconds:.1%}, bets in {each.n_bets} of"
            f" {each.n_rounds} rounds, {each.n_drafted} drafted, {each.n_accepted} accepted"
        )
    over_plain = [each.over_plain for each in found]
    mean = ratio_of_prompts(over_plain, [1.0] * len(found)).ratio
    few = sum(each < 0.99 for each in over_plain)
    print(f"all: {mean:.4f} of plain; {few} of {len(found)} below 0.99")
    keep(args.json, found)


def _prices(name: str, changes_ms: float | None, settling_ms: float | None) -> CostTable:
    """A shipped table, or one in a file."""
    shipped = [table for table in shipped_tables() if table.name == name]
    told = (shipped[0] if shipped else load_costs(Path(name))).to_dict()
    for curve in told["target"]:
        if changes_ms is not None:
            curve["changed_ms"] = {n: ms + changes_ms for n, ms in curve["steady_ms"].items()}
        if settling_ms is not None:
            curve["settling_ms"] = settling_ms
    return CostTable.from_dict(told)


def _blind(costs: CostTable) -> CostTable:
    """The same, but changes of several sequences are for nothing."""
    told = costs.to_dict()
    for curve in told["target"]:
        if curve["sequences"] > 1:
            curve.pop("changed_ms", None), curve.pop("settling_ms", None)
    return CostTable.from_dict(told)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--texts", choices=(*TEXTS, QUEUE), nargs="+", default=[*TEXTS, QUEUE])
    parser.add_argument("--prices", default="gpu-8b-q5_0-streams", help="a table: its name or file")
    parser.add_argument("--answer", type=int, default=96, help="tokens of each answer, at most")
    parser.add_argument("--kept", action="store_true", help="one controller for all")
    parser.add_argument(
        "--search-us", type=float, nargs="+", default=[125.0], help="for each sequence, in turn"
    )
    parser.add_argument("--idle-us", type=float, default=0.0, help="a round without a search")
    parser.add_argument("--changes-ms", type=float, help="absent: as in the table")
    parser.add_argument("--settling-ms", type=float, help="absent: as in the table")
    parser.add_argument("--blind", action="store_true", help="knows no changes of several")
    parser.add_argument("--record", type=Path, metavar="FOLDER", help="record the texts anew")
    return parsed(parser, argv)


if __name__ == "__main__":
    main()
