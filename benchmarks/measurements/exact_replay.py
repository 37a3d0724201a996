"""What exact mode costs by recorded prices: its speed over faithful mode's, every round counted.

    python -m benchmarks.measurements.exact_replay
    python -m benchmarks.measurements.exact_replay --prices gpu-14b-f16 --base 5-8 --out exact.json

The recordings that come with the package are replayed without classes, in one class (--base), and
with another one (--wide) where a text repeats itself, as far as its suffix drafts tell. `least`: of
any one text, over plain decoding. Nothing is timed: the same code gives the same figures anywhere.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.shared.arguments import parser_of
from benchmarks.shared.ratios import ratio_of_prompts
from benchmarks.shared.record import keep
from parlay.control.controller import Controller, FixedWindow
from parlay.control.prices.cost import CostTable, load_costs, shipped_costs
from parlay.control.profit import ProfitController
from parlay.engine.exact.repeats import RUN
from parlay.replay.recording import Recording, mixed_workload
from parlay.replay.replay import Replay, RowsAt

Bounds = tuple[int, int]


def rows_of(base: Bounds, wide: Bounds | None) -> RowsAt:
    """A draft of suffix is as long as what it matched."""

    def rows_at(recording: Recording, position: int) -> Bounds:
        repeats = len(recording.offers["suffix"][position].confidence) >= RUN
        return wide if wide is not None and repeats else base

    return rows_at


def rates(
    controller: Controller, costs: CostTable, names: tuple[str, ...], rows_at: RowsAt | None
) -> list[float]:
    found = Replay(mixed_workload(), names).run(controller, costs, rows_at=rows_at)
    return [each.tokens_per_second for each in found]


def compared(
    costs: CostTable, names: tuple[str, ...], base: Bounds, wide: Bounds
) -> dict[str, dict[str, float]]:
    plain = rates(FixedWindow(0), costs, names, None)
    ways = {
        "faithful": None,
        _name(base): rows_of(base, None),
        f"{_name(base)}+{_name(wide)}": rows_of(base, wide),
    }
    made = {
        way: rates(ProfitController(costs.copy()), costs, names, rows_at)
        for way, rows_at in ways.items()
    }
    return {
        way: {
            "over_faithful": round(ratio_of_prompts(own, made["faithful"]).ratio, 3),
            "over_plain": round(ratio_of_prompts(own, plain).ratio, 3),
            "least": round(min(_ratios(own, plain)), 3),
        }
        for way, own in made.items()
    }


def _ratios(own: Sequence[float], other: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(own, other, strict=True)]


def _name(bounds: Bounds) -> str:
    least, most = bounds
    return str(least) if least == most else f"{least}-{most}"


def _bounds(name: str) -> Bounds:
    least, _, most = name.partition("-")
    return int(least), int(most or least)


def parsed() -> argparse.Namespace:
    ap = parser_of(__doc__)
    ap.add_argument("--prices", nargs="*", default=["gpu-27b-q5_0"], help="names of cost tables")
    ap.add_argument("--base", type=_bounds, help="rows of the class, by default 3-4 or 2 (suffix)")
    ap.add_argument("--wide", type=_bounds, default=(9, 16), help="of texts that repeat themselves")
    ap.add_argument("--out", type=Path, help="everything as JSON")
    return ap.parse_args()


def main() -> None:
    args, tables, found = parsed(), {path.stem: path for path in shipped_costs()}, {}
    for name in args.prices:
        costs = load_costs(tables[name])
        for names in (("suffix",), ("suffix", "model")):
            base = args.base or ((2, 2) if len(names) == 1 else (3, 4))
            key = f"{name}, {' and '.join(names)}"
            found[key] = compared(costs, names, base, args.wide)
            for way, ratios in found[key].items():
                print(key, way, ratios, flush=True)
    keep(args.out, found)


if __name__ == "__main__":
    main()
