"""The plots of a report, as data for plotly: what is drawn, not how a page holds it.

Pure: a record in, dictionaries out. Every text in them is plain, since plotly reads tags in texts.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from parlay.bench.comparison import Comparison, Interval
from parlay.bench.sample import Sample
from parlay.control.prices.breakeven import expected_tokens
from parlay.reading.speculation import pooled
from parlay.results.record import Record
from parlay.web.html import COLOURS

Chart = dict[str, Any]

_DASHES = ("solid", "dash", "dot", "dashdot")
_FILLS = ("", "/", "", ".", "-")
_MARKS = ("circle", "diamond", "square", "triangle-up", "cross")


def charts(record: Record) -> dict[str, Chart]:
    """Every plot this record has data for, by name, in order."""
    made = {
        "speedup": _speedups(record),
        "acceptance": _acceptance(record),
        "windows": _windows(record),
        "costs": _costs(record),
        "time": _time(record),
        "samples": _samples(record),
    }
    return {name: chart for name, chart in made.items() if chart["data"]}


def _text(value: str) -> str:
    return value.replace("<", "\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}").replace("&", "+")


def _chart(data: list[Chart], x: Chart, y: Chart, **layout: Any) -> Chart:
    return {"data": data, "layout": {"xaxis": x, "yaxis": y, **layout}}


def _style(number: int) -> Chart:
    colour = COLOURS[number % len(COLOURS)]
    return {
        "marker": {"color": colour, "size": 9, "symbol": _MARKS[number % len(_MARKS)]},
        "line": {"color": colour, "dash": _DASHES[number % len(_DASHES)]},
    }


# -- speed-up ---------------------------------------------------------------------------------


def _speedups(record: Record) -> Chart:
    data = [_speedup_trace(c, n) for n, c in enumerate(record.comparisons) if c.speedup]
    bounds = [b for c in record.comparisons for i in _intervals(c) for b in (i.low, i.high)]
    low, high = min([0.8, *bounds]), max([1.25, *bounds])
    reach = [math.log10(max(low, 0.05) * 0.97), math.log10(min(high, 50) * 1.03)]
    axis = {"type": "log", "range": reach, "title": {"text": "speed-up, 95 % interval"}}
    one = {"type": "line", "x0": 1, "x1": 1, "yref": "paper", "y0": 0, "y1": 1}
    shape = {**one, "line": {"color": "#59636e", "dash": "dot"}}
    ticks = [0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 3, 4, 6, 8]
    axis |= {"tickvals": ticks, "ticktext": [f"{t:g}x" for t in ticks]}
    return _chart(data, axis, {"autorange": "reversed", "automargin": True}, shapes=[shape])


def _intervals(c: Comparison) -> list[Interval]:
    return [*([c.speedup] if c.speedup else []), *(part.speedup for part in c.by_category)]


def _speedup_trace(c: Comparison, number: int) -> Chart:
    names = ["all", *(part.category for part in c.by_category)]
    rows = _intervals(c)
    return {
        "type": "scatter",
        "mode": "markers",
        "name": _text(c.candidate),
        "x": [i.ratio for i in rows],
        "y": [_text(name) for name in names],
        "error_x": {
            "type": "data",
            "array": [i.high - i.ratio for i in rows],
            "arrayminus": [i.ratio - i.low for i in rows],
            "color": COLOURS[number % len(COLOURS)],
        },
        "marker": _style(number)["marker"],
    }


# -- acceptance and windows -------------------------------------------------------------------


def _acceptance(record: Record) -> Chart:
    data = []
    for number, c in enumerate(record.comparisons):
        if c.acceptance and c.acceptance.by_position:
            shares = c.acceptance.by_position
            data.append(_line(c.candidate, list(range(1, len(shares) + 1)), shares, number))
    y = {"range": [0, 1.02], "tickformat": ".0%", "title": {"text": "accepted, if tried"}}
    return _chart(data, {"title": {"text": "position in the draft"}, "dtick": 1}, y)


def _line(name: str, x: Sequence[float], y: Sequence[float], number: int) -> Chart:
    trace: Chart = {"type": "scatter", "mode": "lines+markers", "name": _text(name)}
    return {**trace, "x": list(x), "y": list(y), **_style(number)}


def _windows(record: Record) -> Chart:
    data = []
    for number, c in enumerate(record.comparisons):
        rows = [(s.at_s, w) for s in record.samples if (w := _window(s, c.candidate)) is not None]
        if rows:
            trace = _line(c.candidate, [t for t, _ in rows], [w for _, w in rows], number)
            data.append({**trace, "mode": "markers"})
    y = {"rangemode": "tozero", "title": {"text": "tokens drafted a round"}}
    return _chart(data, {"title": {"text": "seconds since the run began"}}, y)


def _window(sample: Sample, arm: str) -> float | None:
    told = sample.speculation
    if sample.arm != arm or told is None or not told.windows:
        return None
    rounds = sum(told.windows.values())
    drafted = sum(int(k) * n for k, n in told.windows.items() if k.isdigit())
    return drafted / rounds if rounds else None


# -- costs and time ---------------------------------------------------------------------------


def _costs(record: Record) -> Chart:
    if record.costs is None:
        return _chart([], {}, {})
    points = sorted(record.costs.target, key=lambda p: p.rows)
    one = record.costs.of_rounds.target_s(1)
    rows = [p.rows for p in points]
    data = [_line("cost of a pass, T(b)/T(1)", rows, [p.seconds / one for p in points], 0)]
    for number, c in enumerate(record.comparisons, 1):
        if c.acceptance and c.acceptance.by_position:
            shares = c.acceptance.by_position
            made = [expected_tokens(shares, b - 1) for b in rows]
            data.append(_line(f"tokens made by {c.candidate}", rows, made, number))
    x = {"title": {"text": "tokens in a pass (window + 1)"}}
    return _chart(data, x, {"rangemode": "tozero", "title": {"text": "plain steps, or tokens"}})


def _time(record: Record) -> Chart:
    parts = {arm.name: _split(record.samples, arm.name) for arm in record.arms}
    known = {name: split for name, split in parts.items() if split}
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": what,
            "y": [_text(name) for name in known],
            "x": [split[what] for split in known.values()],
            "marker": {"color": COLOURS[n], "pattern": {"shape": _FILLS[n], "solidity": 0.15}},
        }
        for n, what in enumerate(("prompt", "draft", "verify", "overhead", "other"))
    ]
    x = {"title": {"text": "milliseconds for each token"}}
    y = {"autorange": "reversed", "automargin": True}
    return _chart(data if known else [], x, y, barmode="stack")


def _split(samples: Sequence[Sample], arm: str) -> dict[str, float] | None:
    """Milliseconds a token, by where they went."""
    mine = [s for s in samples if s.arm == arm and s.outcome == "ok"]
    told = pooled([s.speculation for s in mine if s.speculation])
    n = sum(s.n_tokens for s in mine)
    if told is None or told.verify_s is None or not n:
        return None
    draft, verify, overhead = told.draft_s or 0.0, told.verify_s, told.overhead_s or 0.0
    prompt = sum(s.first_token_s for s in mine)
    other = max(0.0, sum(s.wall_s for s in mine) - prompt - draft - verify - overhead)
    names = ("prompt", "draft", "verify", "overhead", "other")
    seconds = (prompt, draft, verify, overhead, other)
    return {name: 1e3 * s / n for name, s in zip(names, seconds, strict=True)}


def _samples(record: Record) -> Chart:
    clock = record.comparisons[0].clock if record.comparisons else "decode"
    by_arm: defaultdict[str, list[tuple[float, float, str]]] = defaultdict(list)
    for s in record.samples:
        speed = s.tokens_per_second(clock)
        if speed is not None:
            by_arm[s.arm].append((s.at_s, speed, f"{s.prompt}, repeat {s.repeat}"))
    data = []
    for number, (name, rows) in enumerate(by_arm.items()):
        trace = _line(name, [r[0] for r in rows], [r[1] for r in rows], number)
        data.append({**trace, "mode": "markers", "text": [_text(r[2]) for r in rows]})
    y = {"rangemode": "tozero", "title": {"text": "tokens a second"}}
    return _chart(data, {"title": {"text": "seconds since the run began"}}, y)
