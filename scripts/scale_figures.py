"""The figures of docs/explanation/scale.md, from cost tables: `python scripts/scale_figures.py`.

Writes docs/figures/*.svg and prints the tables in Markdown. Nothing is measured here; the prices
are, and every table says where. Takes a few minutes.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from parlay.control.prices.cost import load_costs
from parlay.fleet.arrivals import poisson
from parlay.fleet.odds import Odds, recorded_odds
from parlay.fleet.prices import Prices
from parlay.fleet.simulated_machine import PassShape
from parlay.fleet.simulation import SimulationOutcome, Way, simulate
from parlay.fleet.sizing import Goals
from parlay.fleet.streams import best_windows, speedups
from parlay.fleet.tables import cost_tables
from parlay.replay.recording import mixed_workload

Place = Callable[[float, float], tuple[float, float]]
FOLDER = Path(__file__).parents[1] / "docs" / "figures"
COLOURS = ("#0b62a4", "#c8501e", "#2f7d32", "#7b3fa0", "#8a6d00")
DASHES = ("", "7 4", "2 3", "9 3 2 3", "5 5")
STREAMS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 720, 400, 64, 48, 28, 200


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a plot."""

    name: str
    points: Sequence[tuple[float, float]]


# -- drawing ----------------------------------------------------------------------------------


def svg(title: str, x: str, y: str, lines: Sequence[Line], mark: float | None = None) -> str:
    """A plot with a logarithmic x axis; `mark`: a horizontal line."""
    xs = [px for line in lines for px, _ in line.points]
    ys = [py for line in lines for _, py in line.points] + ([mark] if mark else [])
    low, high = math.log(min(xs)), math.log(max(xs))
    top = max(ys) * 1.08

    def at(px: float, py: float) -> tuple[float, float]:
        share = (math.log(px) - low) / (high - low or 1)
        inner = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        return LEFT + share * inner[0], HEIGHT - BOTTOM - py / top * inner[1]

    parts = [_head(title), *_axes(xs, top, at, x, y)]
    if mark is not None:
        (x0, y0), (x1, _) = at(min(xs), mark), at(max(xs), mark)
        parts.append(f'<path d="M{x0:.1f} {y0:.1f}H{x1:.1f}" stroke="#555" stroke-width="1"/>')
    for i, line in enumerate(lines):
        parts += _line(i, line, at)
    return "\n".join([*parts, "</svg>", ""])


def _head(title: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
        f' aria-label="{escape(title)}" font-family="sans-serif" font-size="13">'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>'
        f'<text x="{LEFT}" y="18" font-weight="bold">{escape(title)}</text>'
    )


def _axes(xs: Sequence[float], top: float, at: Place, x: str, y: str) -> list[str]:
    parts = []
    step = next(s for s in _steps() if top / s <= 7)
    for i in range(int(top / step) + 1):
        px, py = at(min(xs), i * step)
        parts.append(f'<path d="M{px:.1f} {py:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(
            f'<text x="{px - 8:.1f}" y="{py + 4:.1f}" text-anchor="end">{i * step:g}</text>'
        )
    values = sorted(set(xs))
    for value in values if len(values) <= 9 else [v for v in values if math.log2(v).is_integer()]:
        px, py = at(value, 0)
        parts.append(f'<text x="{px:.1f}" y="{py + 18:.1f}" text-anchor="middle">{value:g}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 10}" text-anchor="middle">{escape(x)}</text>')
    turned = f'transform="rotate(-90 16 {HEIGHT / 2})" text-anchor="middle"'
    parts.append(f'<text x="16" y="{HEIGHT / 2}" {turned}>{escape(y)}</text>')
    return parts


def _steps() -> list[float]:
    return [base * 10.0**power for power in range(-3, 6) for base in (1, 2, 5)]


def _line(i: int, line: Line, at: Place) -> list[str]:
    points = " ".join(f"{px:.1f},{py:.1f}" for px, py in (at(*point) for point in line.points))
    colour, dash = COLOURS[i % len(COLOURS)], DASHES[i % len(DASHES)]
    style = f'fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"'
    y = TOP + 14 + 20 * i
    x = WIDTH - RIGHT + 12
    return [
        f'<polyline points="{points}" {style}/>',
        f'<path d="M{x} {y - 4}h24" {style}/>',
        f'<text x="{x + 30}" y="{y}">{escape(line.name)}</text>',
    ]


# -- what batch does to the bet ---------------------------------------------------------------


def odds_for(prices: Prices) -> dict[str, Odds]:
    recordings = mixed_workload()
    found = {"suffix": recorded_odds(recordings, "suffix")}
    if prices.has_drafter:
        found["a drafter, 60 to 80 %"] = recorded_odds(recordings, "pruned")
    return found


def streams_figure(names: Sequence[str]) -> None:
    lines, rows = [], []
    for name in names:
        prices = Prices(load_costs(cost_tables()[name]))
        for what, odds in odds_for(prices).items():
            most = min(256, max(16, prices.max_sequences))
            streams = [n for n in STREAMS if n <= most]
            points = speedups(prices, odds, PassShape(most), streams)
            lines.append(
                Line(f"{name}, {what.split(',')[0]}", [(p.n_streams, p.speedup) for p in points])
            )
            shown = {p.n_streams: f"{p.speedup:.2f} ({p.window})" for p in points}
            cells = " | ".join(shown.get(n, "") for n in (1, 2, 4, 8, 16, 32, 64, 128, 256))
            rows.append(f"| {name} | {what} | {cells} |")
    write("scale-streams.svg", svg("Speed-up by streams", "streams", "speed-up", lines, mark=1.0))
    print("| prices | proposer | 1 | 2 | 4 | 8 | 16 | 32 | 64 | 128 | 256 |")
    print("|---" * 11 + "|")
    print("\n".join(rows), flush=True)


# -- machines ---------------------------------------------------------------------------------


def lengths() -> list[tuple[int, int]]:
    return [(r.n_prompt, r.n_tokens + 1) for r in mixed_workload()]


def most_traffic(
    prices: Prices, shape: PassShape, way: Way, goals: Goals, n: int
) -> tuple[float, SimulationOutcome]:
    """Requests a second for each of n machines at which the goals are just kept."""
    n_requests = max(400, 12 * n)

    def run(rate: float) -> SimulationOutcome:
        arrivals = poisson(lengths(), rate * n, n_requests, seed=n)
        return simulate(arrivals, prices, shape, way, n_machines=n, seed=n)[0]

    low, high = (
        0.0,
        1 / (prices.prompt_s(80) + 60 * prices.pass_s(shape.slots, 1, 256) / shape.slots),
    )
    high *= 4
    kept = run(high / 1e3)
    for _ in range(9):
        middle = (low + high) / 2
        seen = run(middle)
        if goals.kept(seen):
            low, kept = middle, seen
        else:
            high = middle
    return low, kept


def fleet_figure(name: str, proposer: str, slots: int, goals: Goals, sizes: Sequence[int]) -> None:
    prices = Prices(load_costs(cost_tables()[name]))
    odds = odds_for(prices)[proposer]
    shape = PassShape(slots, chunk=512)
    windows = best_windows(speedups(prices, odds, shape, [n for n in STREAMS if n <= slots]))
    ways = {"plain": Way(), "speculative": Way(odds, lambda k: windows.get(k, 0))}
    lines: list[Line] = []
    for what, way in ways.items():
        found = []
        for n in sizes:
            rate, seen = most_traffic(prices, shape, way, goals, n)
            found.append((float(n), rate))
            print(
                f"| {name} | {slots} | {what} | {n} | {rate:.2f} | {rate * n:,.0f} |"
                f" {seen.utilisation:.0%} | {seen.ttft_ms[1]:.0f} | {seen.tpot_ms[1]:.1f} |",
                flush=True,
            )
        lines.append(Line(what, found))
    title = f"Traffic of one machine in a fleet, {name}"
    write(f"scale-{name}.svg", svg(title, "machines", "requests a second, each", lines))


def write(name: str, text: str) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / name).write_text(text, "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--streams", nargs="*", default=[])
    parser.add_argument("--fleet", help="a cost table")
    parser.add_argument("--proposer", default="suffix")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--ttft-goal", type=float, default=1000.0)
    parser.add_argument("--tpot-goal", type=float, default=50.0)
    parser.add_argument("--sizes", type=int, nargs="*", default=[1, 4, 16, 64, 256, 1000])
    given = parser.parse_args()
    if given.streams:
        streams_figure(given.streams)
    if given.fleet:
        columns = ("machines", "requests/s each", "in all", "busy", "first p95 ms", "each p95 ms")
        print(f"| prices | slots | | {' | '.join(columns)} |")
        print("|---" * 9 + "|")
        goals = Goals(given.ttft_goal, given.tpot_goal)
        fleet_figure(given.fleet, given.proposer, given.slots, goals, given.sizes)


if __name__ == "__main__":
    main()
