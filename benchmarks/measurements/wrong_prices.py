"""A start that measured changes of shape wrongly, by replay: what its first answers make.

    python -m benchmarks.measurements.wrong_prices --factors 0.5 1 2

By the prices of a shipped table (a mixture on an H200, unless another is named) a controller plays
three answers of 128 tokens that repeat themselves, and then as many that mislead: after 24 right
tokens all that is offered is wrong. It knows nothing but prices, in which changes and settling cost
so many times what they do. Over plain decoding; nothing is timed: figures are the same anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from benchmarks.shared.arguments import parsed, parser_of
from benchmarks.shared.record import keep
from parlay.control.prices.cost import CostTable, shipped_tables
from parlay.control.profit import ProfitController
from parlay.replay.hindsight import plain_seconds
from parlay.replay.recording import Recording
from parlay.replay.replay import Replay
from parlay.replay.searching import SearchCost
from parlay.replay.texts import repeating, turning

FREE = ("ngram", "suffix")
N_TOKENS, N_RIGHT, N_ANSWERS = 128, 24, 3


@dataclass(frozen=True, slots=True)
class Played:
    """One text under one belief: each answer over plain decoding."""

    factor: float
    period: int
    repeating: list[float]
    turning: list[float]


def play(costs: CostTable, factor: float, period: int, search: SearchCost) -> Played:
    def speeds(text: Recording) -> list[float]:
        controller = ProfitController(costs.with_changes(factor))
        found = Replay([text] * N_ANSWERS, FREE).run(controller, costs, search=search)
        return [round(plain_seconds(text, costs) / each.seconds, 2) for each in found]

    text = repeating(N_TOKENS, period)
    return Played(factor, period, speeds(text), speeds(turning(text, N_RIGHT)))


def main(argv: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--prices", default="gpu-30b-a3b-q4_0-settling")
    parser.add_argument("--factors", type=float, nargs="+", default=[0.5, 1.0, 1.5, 2.0, 2.5])
    parser.add_argument("--periods", type=int, nargs="+", default=[1, 3, 8])
    parser.add_argument("--search-us", type=float, default=300.0)
    args = parsed(parser, argv)
    by_name = {table.name: table for table in shipped_tables()}
    if args.prices not in by_name:
        raise SystemExit(f"no table {args.prices}; there are {', '.join(sorted(by_name))}")
    search = SearchCost(args.search_us / 1e6, 0.03e-3, beside=True)
    found = []
    for factor in args.factors:
        for period in args.periods:
            one = play(by_name[args.prices], factor, period, search)
            print(
                f"changes at {factor:g} of what they cost, {period} tokens again and again:"
                f" {one.repeating}; misleading after {N_RIGHT}: {one.turning}"
            )
            found.append(asdict(one))
    keep(args.json, found)


if __name__ == "__main__":
    main()
