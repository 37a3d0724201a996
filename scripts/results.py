"""Writes docs/results.md and its plots from benchmarks/results: `python scripts/results.py`.

Each file there answers one question and says on which machine, by which commit and with which
command it was measured. Nothing is measured here. With --check nothing is written, and stale pages
are an error.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "benchmarks/results", ROOT / "docs/results.md"
FIGURES = ROOT / "docs/figures"
KEYS = {"order", "question", "machine", "commit", "measured", "command", "text", "columns", "rows"}

INTRO = """# Results

One table for each question, from the newest run that answered it. A figure in brackets is its 95 %
interval. Ratios are of runs that took turns on one machine, so noise that both share cancels.
Above 1 is faster. A *stand-in* does a large model's work and says a small model's words
([how it is made](../benchmarks/README.md#models)). For your own machine: `parlay bench`
([how](how-to/benchmark.md)).

This page is written by `python scripts/results.py` from the files in
[benchmarks/results](../benchmarks/results). Each names its machine, its commit and its command.
"""


@dataclass(frozen=True, slots=True)
class Result:
    """One question's answer, as its file has it."""

    name: str
    about: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> Result:
        about = json.loads(path.read_text("utf-8"))
        missing = KEYS - about.keys()
        if missing:
            raise SystemExit(f"{path.name}: {', '.join(sorted(missing))} missing; add them")
        for row in about["rows"]:
            if len(row["cells"]) != len(about["columns"]) - 1:
                raise SystemExit(f"{path.name}: row {row['name']!r} does not fit the columns")
        return cls(path.stem, about)

    def section(self) -> str:
        about = self.about
        lines = [f"## {about['question']}", about["text"], ""]
        if "plot" in about:
            lines += [f"![{about['question']}](figures/{self.name}.svg)", ""]
        lines += [_line(about["columns"]), _line(["---"] * len(about["columns"]))]
        lines += [_line([row["name"], *map(shown, row["cells"])]) for row in about["rows"]]
        machine, commit, when = about["machine"], about["commit"], about["measured"]
        commands = [about["command"]] if isinstance(about["command"], str) else about["command"]
        lines += ["", f"{machine}; commit {commit}, {when}:", "```", *commands, "```"]
        return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def shown(cell: Any) -> str:
    """A figure, a figure with its interval, a word, or nothing."""
    if cell is None:
        return ""
    if isinstance(cell, list):
        value, low, high = cell
        return f"{value:.2f} [{low:.2f}, {high:.2f}]"
    return f"{cell:g}" if isinstance(cell, (int, float)) else str(cell)


def page(results: Sequence[Result]) -> str:
    rows = [
        _line([f"[{r.about['question']}](#{anchor(r.about['question'])})", r.about["machine"]])
        for r in results
    ]
    contents = "\n".join([_line(["question", "measured on"]), _line(["---", "---"]), *rows])
    return "\n\n".join([INTRO.rstrip(), contents, *(r.section() for r in results)]) + "\n"


def anchor(title: str) -> str:
    kept = "".join(c for c in title.lower() if c.isalnum() or c in "-_ ")
    return kept.replace(" ", "-")


# -- plots ----------------------------------------------------------------------------------------

# Colours that keep apart in both themes and without colour vision; text follows the theme.
COLOURS = ("#3b7dd8", "#e08214", "#4daf4a", "#b35ac2", "#999933")
DASHES = ("", "7 4", "2 3", "9 3 2 3", "5 5")
STYLE = (
    "<style>text{fill:#222;font:13px sans-serif}.grid{stroke:#ddd}.one{stroke:#777}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.grid{stroke:#444}.one{stroke:#aaa}}</style>"
)
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 330, 56, 190, 36, 44


def plot(result: Result) -> str:
    """Lines over the columns ("lines") or bars by row ("bars"), with intervals where known."""
    about = result.about
    kind = about["plot"]["kind"]
    wanted = about["plot"].get("columns", about["columns"][1:])
    at = [about["columns"].index(name) - 1 for name in wanted]
    series = {row["name"]: [row["cells"][i] for i in at] for row in about["rows"]}
    if kind == "bars":  # one group a row, one bar a column
        groups, names = list(series), wanted
        values = {name: [series[g][i] for g in groups] for i, name in enumerate(names)}
    else:
        groups, values = wanted, series
    highs = [
        c[2] if isinstance(c, list) else c for v in values.values() for c in v if c is not None
    ]
    top: float = 1.08 * max(highs)
    step = next(s for s in (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if top / s <= 7)
    inner_w, inner_h = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def y_of(value: float) -> float:
        return HEIGHT - BOTTOM - value / top * inner_h

    title = escape(about["question"])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
        f' aria-label="{title}">{STYLE}<text x="{LEFT}" y="20" font-weight="bold">{title}</text>'
    ]
    for i in range(int(top / step) + 1):
        y = y_of(i * step)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{i * step:g}</text>')
    if about["plot"].get("one", True) and top > 1:
        parts.append(f'<path class="one" d="M{LEFT} {y_of(1):.1f}H{WIDTH - RIGHT}"/>')
    width = inner_w / len(groups)
    for i, name in enumerate(groups):
        x = LEFT + (i + 0.5) * width
        label = escape(str(name))
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 24}" text-anchor="middle">{label}</text>')
    parts.append(
        f'<text x="{LEFT + inner_w / 2}" y="{HEIGHT - 6}" text-anchor="middle">'
        f"{escape(about['plot'].get('x', ''))}</text>"
    )
    for n, (name, cells) in enumerate(values.items()):
        colour, dash = COLOURS[n % len(COLOURS)], DASHES[n % len(DASHES)]
        points = []
        for i, cell in enumerate(cells):
            if cell is None:
                continue
            value, low, high = cell if isinstance(cell, list) else (cell, None, None)
            x = LEFT + (i + 0.5) * width
            if kind == "bars":
                bar = 0.8 * width / len(values)
                left = x - 0.4 * width + n * bar
                x, y = left + bar / 2, y_of(value)
                parts.append(
                    f'<rect x="{left:.1f}" y="{y:.1f}" width="{0.9 * bar:.1f}"'
                    f' height="{y_of(0) - y:.1f}" fill="{colour}"/>'
                )
            points.append(f"{x:.1f},{y_of(value):.1f}")
            if low is not None and high is not None:
                parts.append(
                    f'<path d="M{x:.1f} {y_of(low):.1f}V{y_of(high):.1f}" class="one"'
                    ' stroke-width="1.5"/>'
                )
        y = TOP + 12 + 20 * n
        x = WIDTH - RIGHT + 12
        if kind == "bars":
            parts.append(f'<rect x="{x}" y="{y - 10}" width="22" height="11" fill="{colour}"/>')
        else:
            style = f'fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"'
            parts.append(f'<polyline points="{" ".join(points)}" {style}/>')
            parts.append(f'<path d="M{x} {y - 4}h22" {style}/>')
        parts.append(f'<text x="{x + 30}" y="{y}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if pages are stale")
    options = parser.parse_args()
    results = [Result.read(path) for path in RESULTS.glob("*.json")]
    results.sort(key=lambda result: (result.about["order"], result.name))
    written = {PAGE: page(results)}
    written |= {FIGURES / f"{r.name}.svg": plot(r) for r in results if "plot" in r.about}
    stale = [p for p, text in written.items() if not p.exists() or p.read_text("utf-8") != text]
    if options.check:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is stale: run python scripts/results.py")
        return int(bool(stale))
    FIGURES.mkdir(exist_ok=True)
    for path in stale:
        path.write_text(written[path], "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
