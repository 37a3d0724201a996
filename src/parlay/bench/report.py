"""A result for people: one HTML page with plots, and a Markdown table.

Knows records and pages; plotly's script comes from the installed package, into the page. What is
drawn is data for plotly, its texts plain, since plotly reads tags in texts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from parlay.bench.page import COLOURS, escape, page, table
from parlay.bench.record import Comparison, Record, Sample
from parlay.errors import BadRequest
from parlay.reading.speculation import pooled

Chart = dict[str, Any]
Cells = tuple[str, ...]

_DASHES = ("solid", "dash", "dot", "dashdot")
_FILLS = ("", "/", "", ".")
_MARKS = ("circle", "diamond", "square", "triangle-up", "cross")

_SCRIPT: Final = """
const charts = JSON.parse(document.getElementById("data").textContent);
const layout = {margin: {l: 60, r: 15, t: 10, b: 50}, font: {family: "system-ui, sans-serif",
  size: 13}, legend: {orientation: "h", y: 1.02, yanchor: "bottom"}, paper_bgcolor: "#fff",
  plot_bgcolor: "#fff", hovermode: "closest"};
const axis = {gridcolor: "#e4e9ee", zerolinecolor: "#d1d9e0"};
for (const [name, chart] of Object.entries(charts)) {
  const full = {...layout, ...chart.layout};
  full.xaxis = {...axis, ...full.xaxis};
  full.yaxis = {...axis, ...full.yaxis};
  Plotly.newPlot(name, chart.data, full, {responsive: true, displayModeBar: false});
}
document.body.dataset.ready = "yes";
"""


def report(record: Record) -> str:
    """The page: verdicts, plots, tables, and everything that speaks against it."""
    made = {name: draw(record) for name, (_, _, draw) in PLOTS.items()}
    drawn = {name: chart for name, chart in made.items() if chart["data"]}
    run = record.run
    quick = " (quick: a look, not a conclusion)" if run.quick else ""
    about = (
        f"{record.suite.name}, {len(record.suite.categories)} prompts, {run.n_repeats_done} pairs"
        f" each{quick}, {record.created}, Parlay {record.parlay}, result {record.id}, CC BY 4.0"
    )
    body = "\n".join(
        [
            f"<h1>{escape(record.title)}</h1>\n<p class='soft'>{escape(about)}</p>",
            *(_card(c) for c in record.comparisons),
            "<h2>Results</h2>",
            table(_HEADS, [row for c in record.comparisons for row in _rows(c)], (2, 3, 4, 5)),
            '<p class="soft">* an interval for these prompts only: too few for others.</p>',
            *(_figure(name) for name in drawn),
            *_against(record),
            "<h2>Setting</h2>",
            table(("", ""), list(_setting(record))),
        ]
    )
    return page(record.title, body, [_plotly(), _SCRIPT], drawn)


def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise BadRequest("the page needs plotly: pip install plotly") from error
    # Inside an element: nothing in it may end the element, or begin a comment.
    script: str = get_plotlyjs()
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


# -- tables -----------------------------------------------------------------------------------

_HEADS = ("candidate", "task", "speed-up", "95 % interval", "accepted", "tokens a round")


def _rows(c: Comparison) -> Iterator[Cells]:
    """All prompts together, then each category."""
    taken = c.acceptance
    if c.speedup:
        share = taken.token_acceptance if taken and taken.counts.drafted else None
        length = taken.acceptance_length if taken else None
        yield c.candidate, "all", f"{c.speedup.ratio:.2f}x", str(c.speedup), *_drafts(share, length)
    for part in c.by_category:
        drafts = _drafts(part.token_acceptance, part.acceptance_length)
        ratio = f"{part.speedup.ratio:.2f}x"
        yield c.candidate, part.category, ratio, str(part.speedup), *drafts


def _drafts(share: float | None, length: float | None) -> tuple[str, str]:
    return "-" if share is None else f"{share:.0%}", "-" if length is None else f"{length:.2f}"


def _card(c: Comparison) -> str:
    shown = f"{c.speedup.ratio:.2f}x, {c.speedup}" if c.speedup else "no figure"
    kind = c.verdict.replace(" ", "-")
    return (
        f'<p><span class="verdict {kind}">{escape(c.candidate)}: {escape(c.verdict)}</span>'
        f" ({escape(shown)}) against {escape(c.baseline)}; {_same(c)}.</p>\n"
    )


def _same(c: Comparison) -> str:
    return f"{c.identity.n_identical} of {c.identity.n_compared} texts identical"


def _figure(name: str) -> str:
    title, text, _ = PLOTS[name]
    return f'<h2>{title}</h2>\n<p class="soft">{text}</p>\n<div class="chart" id="{name}"></div>'


def _against(record: Record) -> Iterator[str]:
    """Warnings, checks, failures, texts that differ."""
    yield "<h2>Before you believe it</h2>"
    for warning in record.warnings:
        yield f'<p class="note">Warning. {escape(warning)}.</p>'
    words = {True: "holds", False: "FAILS", None: "cannot be told"}
    checks = [(check.name, words[check.ok], check.text) for check in record.checks]
    yield table(("check", "", "what was found"), checks)
    failures = [f for c in record.comparisons for f in c.failures][:200]
    if failures:
        rows = [(f.prompt, f.arm, f.repeat, f.outcome, f.reason) for f in failures]
        yield "<h2>Requests without a figure</h2>"
        yield table(("prompt", "arm", "repeat", "outcome", "reason"), rows, (2,))
    differing = [(c.candidate, p) for c in record.comparisons for p in c.identity.differing]
    if differing:
        yield f"<h2>Texts that differ</h2>\n{table(('candidate', 'prompt'), differing)}"


def _setting(record: Record) -> Iterator[tuple[str, str]]:
    machine, run = record.machine, record.run
    yield "CPU", f"{machine.cpu}, {machine.n_cores} cores, {machine.n_threads} threads used"
    reads = f"{machine.memory_bandwidth / 1e9:.1f} GB/s (measured)"
    yield "memory", f"{machine.memory_bytes / 2**30:.0f} GiB, reads {reads}"
    for number, gpu in enumerate(machine.gpus):
        yield f"GPU {number}", f"{gpu.name}, {gpu.memory_bytes / 2**30:.0f} GiB"
    yield "system", f"{machine.os}, Python {machine.python}, llama.cpp {machine.llama_cpp}"
    for word, model in (("target", record.target), ("drafter", record.drafter)):
        if model is not None:
            size = f"{model.n_params / 1e9:.2f}B parameters"
            yield word, f"{model.name}, {size}, {model.file_type}, SHA-256 {model.sha256}"
    for arm in record.arms:
        told = arm.model_dump(exclude_none=True, exclude={"name"})
        yield f"arm {arm.name}", ", ".join(f"{name} {value}" for name, value in told.items())
    yield "suite", f"{record.suite.name}, SHA-256 {record.suite.sha256}"
    sat = f"{run.duration_s:.0f} s in {run.n_sittings} sitting(s)"
    yield "order", f"mirrored pairs, seed {run.seed}, {sat}"


# -- plots ------------------------------------------------------------------------------------


def _text(value: str) -> str:
    return value.replace("<", "\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}").replace("&", "+")


def _chart(data: list[Chart], x: Chart, y: Chart, **layout: Any) -> Chart:
    return {"data": data, "layout": {"xaxis": x, "yaxis": y, **layout}}


def _trace(name: str, number: int, x: Sequence[Any], y: Sequence[Any], mode: str) -> Chart:
    colour = COLOURS[number % len(COLOURS)]
    return {
        "type": "scatter",
        "mode": mode,
        "name": _text(name),
        "x": list(x),
        "y": list(y),
        "marker": {"color": colour, "size": 9, "symbol": _MARKS[number % len(_MARKS)]},
        "line": {"color": colour, "dash": _DASHES[number % len(_DASHES)]},
    }


def _speedups(record: Record) -> Chart:
    data, bounds = [], [0.8, 1.25]
    for number, c in enumerate(record.comparisons):
        parts = [("all", c.speedup), *((p.category, p.speedup) for p in c.by_category)]
        rows = [(_text(name), found) for name, found in parts if found is not None]
        if rows:
            x = [found.ratio for _, found in rows]
            trace = _trace(c.candidate, number, x, [name for name, _ in rows], "markers")
            trace["error_x"] = {
                "type": "data",
                "array": [found.high - found.ratio for _, found in rows],
                "arrayminus": [found.ratio - found.low for _, found in rows],
                "color": COLOURS[number % len(COLOURS)],
            }
            data.append(trace)
            bounds += [bound for _, found in rows for bound in (found.low, found.high)]
    reach = [math.log10(max(min(bounds), 0.05) * 0.97), math.log10(min(max(bounds), 50) * 1.03)]
    ticks = [0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 3, 4, 6, 8]
    axis = {"type": "log", "range": reach, "title": {"text": "speed-up, 95 % interval"}}
    axis |= {"tickvals": ticks, "ticktext": [f"{tick:g}x" for tick in ticks]}
    one: Chart = {"type": "line", "x0": 1, "x1": 1, "yref": "paper", "y0": 0, "y1": 1}
    shape = {**one, "line": {"color": "#59636e", "dash": "dot"}}
    return _chart(data, axis, {"autorange": "reversed", "automargin": True}, shapes=[shape])


def _acceptance(record: Record) -> Chart:
    data = []
    for number, c in enumerate(record.comparisons):
        if c.acceptance and c.acceptance.by_position:
            shares = c.acceptance.by_position
            places = range(1, len(shares) + 1)
            data.append(_trace(c.candidate, number, places, shares, "lines+markers"))
    y = {"range": [0, 1.02], "tickformat": ".0%", "title": {"text": "accepted, if tried"}}
    return _chart(data, {"title": {"text": "position in the draft"}, "dtick": 1}, y)


def _over_time(record: Record, value: Callable[[Sample], float | None], title: str) -> Chart:
    """A figure of each sample, in the order of the run."""
    data = []
    for number, arm in enumerate(record.arms):
        mine = [(s, v) for s in record.samples if s.arm == arm.name and (v := value(s)) is not None]
        if mine:
            trace = _trace(
                arm.name, number, [s.at_s for s, _ in mine], [v for _, v in mine], "markers"
            )
            trace["text"] = [_text(f"{s.prompt}, repeat {s.repeat}") for s, _ in mine]
            data.append(trace)
    y = {"rangemode": "tozero", "title": {"text": title}}
    return _chart(data, {"title": {"text": "seconds since the run began"}}, y)


def _windows(record: Record) -> Chart:
    def window(sample: Sample) -> float | None:
        told = sample.speculation
        rounds = sum(told.windows.values()) if told else 0
        if told is None or not rounds or not told.drafted:
            return None
        return sum(int(k) * n for k, n in told.windows.items() if k.isdigit()) / rounds

    return _over_time(record, window, "tokens drafted a round")


def _samples(record: Record) -> Chart:
    clock = record.comparisons[0].clock if record.comparisons else "decode"
    return _over_time(record, lambda s: s.tokens_per_second(clock), "tokens a second")


def _time(record: Record) -> Chart:
    """Milliseconds a token, by where they went."""
    known: dict[str, list[float]] = {}
    for arm in record.arms:
        mine = [s for s in record.samples if s.arm == arm.name and s.outcome == "ok"]
        told, n = (
            pooled([s.speculation for s in mine if s.speculation]),
            sum(s.n_tokens for s in mine),
        )
        if told is not None and told.verify_s is not None and n:
            parts = [sum(s.first_token_s for s in mine), told.draft_s or 0.0, told.verify_s]
            parts.append(max(0.0, sum(s.wall_s for s in mine) - sum(parts)))
            known[_text(arm.name)] = [1e3 * seconds / n for seconds in parts]
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": what,
            "y": list(known),
            "x": [split[i] for split in known.values()],
            "marker": {"color": COLOURS[i], "pattern": {"shape": _FILLS[i], "solidity": 0.15}},
        }
        for i, what in enumerate(("prompt", "draft", "verify", "other"))
    ]
    x = {"title": {"text": "milliseconds for each token"}}
    y = {"autorange": "reversed", "automargin": True}
    return _chart(data if known else [], x, y, barmode="stack")


PLOTS: Final[dict[str, tuple[str, str, Callable[[Record], Chart]]]] = {
    "speedup": (
        "Speed-up by category",
        "Right of the dotted line the candidate is faster.",
        _speedups,
    ),
    "acceptance": (
        "Acceptance by position",
        "Share of drafted tokens that the target confirmed, over the rounds that got so far.",
        _acceptance,
    ),
    "windows": ("Windows over time", "Mean draft length of each answer.", _windows),
    "time": ("Where the time went", "By arm; the prompt is spread over its tokens.", _time),
    "samples": ("Every sample", "A drift or a stall of the machine shows here.", _samples),
}


# -- Markdown, for a README or an issue -------------------------------------------------------

_SIGNS = re.compile(r"([\\`*_\[\]<>|~#!])")


def plain(text: object) -> str:
    """Text that stays text in Markdown."""
    return _SIGNS.sub(r"\\\1", " ".join(str(text).split()))


def markdown(record: Record) -> str:
    """Verdicts, the table by task, the warnings, and what it was run on."""
    n, suite = record.run.n_repeats_done, plain(record.suite.name)
    lines = [
        f"**{plain(record.title)}**: {suite}, {n} pairs a prompt, {record.created},"
        f" result `{record.id}`",
        "",
        f"| {' | '.join(_HEADS)} |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for c in record.comparisons:
        lines += [f"| {' | '.join(map(plain, row))} |" for row in _rows(c)]
    lines.append("")
    for c in record.comparisons:
        a, b = c.baseline_tokens_per_second, c.candidate_tokens_per_second
        speed = f"{a:.1f} to {b:.1f} tok/s; " if a and b else ""
        against = f"{plain(c.candidate)} against {plain(c.baseline)}"
        lines.append(f"- {against}: {c.verdict}; {speed}{_same(c)}.")
    lines += [f"- Warning: {plain(warning)}" for warning in record.warnings]
    return "\n".join(lines) + "\n"
