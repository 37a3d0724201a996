"""A result as one HTML page: verdict, plots, tables, and everything that speaks against it.

Knows records and pages; plotly's script comes from the installed package, into the page.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from parlay.bench.comparison import Comparison, Interval
from parlay.errors import BadRequest
from parlay.results.charts import charts
from parlay.results.record import ModelInfo, Record
from parlay.web.html import escape, page, table

TITLES: Final = {
    "speedup": ("Speed-up by category", "Right of the dotted line the candidate is faster."),
    "acceptance": (
        "Acceptance by position",
        "Share of drafted tokens that the target confirmed, over the rounds that got so far.",
    ),
    "windows": ("Windows over time", "Mean draft length of each answer, in the order of the run."),
    "costs": (
        "Cost curve",
        "A pass over b tokens in plain steps, and the tokens such a round makes. Speculation pays"
        " where tokens are above cost.",
    ),
    "time": ("Where the time went", "By arm; the prompt is spread over the tokens it led to."),
    "samples": ("Every sample", "A drift or a stall of the machine shows here."),
}

SCRIPT: Final = """
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
    """The page."""
    drawn = charts(record)
    body = "\n".join(
        [
            _head(record),
            _verdicts(record),
            *(_figure(name) for name in drawn),
            _against(record),
            _differences(record),
            _setting(record),
        ]
    )
    return page(_title(record), body, [_plotly(), SCRIPT], drawn)


def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise BadRequest("the page needs plotly: pip install 'parlay[report]'") from error
    # Inside an element: nothing in it may end the element, or begin a comment.
    script: str = get_plotlyjs()
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _title(record: Record) -> str:
    model = record.target.name if record.target else (record.baseline.model or "a server")
    return f"{model} on {_hardware(record)}"


def _hardware(record: Record) -> str:
    gpus = [gpu.name for gpu in record.machine.gpus]
    return ", ".join(gpus) if gpus else record.machine.cpu


def _head(record: Record) -> str:
    suite, run = record.suite, record.run
    quick = " (quick: a look, not a conclusion)" if run.quick else ""
    return (
        f"<h1>{escape(_title(record))}</h1>\n"
        f'<p class="soft">{escape(suite.name)}, {len(suite.categories)} prompts,'
        f" {run.n_repeats_done} pairs each{escape(quick)}, {escape(record.created)},"
        f" Parlay {escape(record.parlay)}, result {escape(record.id)},"
        " CC BY 4.0</p>"
    )


def _verdicts(record: Record) -> str:
    cards = "".join(_card(c) for c in record.comparisons)
    heads = ("candidate", "task", "speed-up", "95 % interval", "accepted", "tokens a round")
    rows = [row for c in record.comparisons for row in _rows(c)]
    note = '<p class="soft">* an interval for these prompts only: too few to speak for others.</p>'
    return f"{cards}\n<h2>Results</h2>\n{table(heads, rows, (2, 3, 4, 5))}\n{note}"


def _card(c: Comparison) -> str:
    shown = f"{c.speedup.ratio:.2f}x, {interval_text(c.speedup)}" if c.speedup else "no figure"
    same = f"{c.identity.n_identical} of {c.identity.n_compared} texts identical"
    kind = c.verdict.replace(" ", "-")
    return (
        f'<p><span class="verdict {kind}">{escape(c.candidate)}: {escape(c.verdict)}</span>'
        f" ({escape(shown)}) against {escape(c.baseline)}; {escape(same)}.</p>\n"
    )


def interval_text(interval: Interval) -> str:
    """As it is shown everywhere."""
    if interval.high / interval.low > 1e6:
        return "unknown"
    mark = "" if interval.scope == "tasks" else "*"
    return f"{interval.low:.2f} to {interval.high:.2f}{mark}"


def _rows(c: Comparison) -> Iterable[tuple[str, ...]]:
    taken = c.acceptance
    if c.speedup:
        yield (
            c.candidate,
            "all",
            f"{c.speedup.ratio:.2f}x",
            interval_text(c.speedup),
            f"{taken.token_acceptance:.0%}" if taken and taken.counts.drafted else "-",
            f"{taken.acceptance_length:.2f}" if taken else "-",
        )
    for part in c.by_category:
        share, length = part.token_acceptance, part.acceptance_length
        yield (
            c.candidate,
            part.category,
            f"{part.speedup.ratio:.2f}x",
            interval_text(part.speedup),
            "-" if share is None else f"{share:.0%}",
            "-" if length is None else f"{length:.2f}",
        )


def _figure(name: str) -> str:
    title, text = TITLES[name]
    return f'<h2>{title}</h2>\n<p class="soft">{text}</p>\n<div class="chart" id="{name}"></div>'


def _against(record: Record) -> str:
    """Break-even in words, warnings, failures, checks."""
    parts = ["<h2>Before you believe it</h2>"]
    for a in record.analyses:
        parts.append(f'<p class="note">{escape(a.candidate)}: {escape(a.break_even.text)}.</p>')
    for w in record.warnings:
        arm = f"{w.arm}: " if w.arm else ""
        parts.append(f'<p class="note">Warning. {escape(arm + w.text)}.</p>')
    words = {True: "holds", False: "FAILS", None: "cannot be told"}
    rows = [(check.name, words[check.ok], check.text) for check in record.checks]
    parts.append(table(("check", "", "what was found"), rows))
    failures = [f for c in record.comparisons for f in c.failures]
    if failures:
        rows_ = [(f.prompt, f.arm, f.repeat, f.outcome, f.reason) for f in failures[:200]]
        parts.append("<h2>Requests without a figure</h2>")
        parts.append(table(("prompt", "arm", "repeat", "outcome", "reason"), rows_, (2,)))
    return "\n".join(parts)


def _differences(record: Record) -> str:
    rows = [
        (
            c.candidate,
            d.prompt,
            d.character if d.token is None else d.token,
            d.baseline or "-",
            d.candidate or "-",
            "-" if d.gap is None else f"{d.gap:.4f}",
        )
        for c in record.comparisons
        for d in c.identity.differences
    ]
    if not rows:
        return ""
    heads = (
        "candidate",
        "prompt",
        "from token",
        "baseline",
        "candidate's",
        "gap in log-probability",
    )
    return f"<h2>Texts that differ</h2>\n{table(heads, rows, (2, 5))}"


def _setting(record: Record) -> str:
    run = record.run
    rows = [*_machine_rows(record)]
    for word, model in (("target", record.target), ("drafter", record.drafter)):
        if model is not None:
            rows.append((word, _model(model)))
    for arm in record.arms:
        rows.append((f"arm {arm.name}", _arm_text(arm.model_dump(exclude_none=True))))
    rows.append(("suite", f"{record.suite.name}, SHA-256 {record.suite.sha256}"))
    sat = f"{run.duration_s:.0f} s in {run.n_sittings} sitting(s)"
    rows.append(("order", f"mirrored pairs, seed {run.seed}, {sat}"))
    return f"<h2>Setting</h2>\n{table(('', ''), rows)}"


def _machine_rows(record: Record) -> Iterable[tuple[str, str]]:
    machine = record.machine
    yield "CPU", f"{machine.cpu}, {machine.n_cores} cores, {machine.n_threads} threads used"
    reads = f"{machine.memory_bandwidth / 1e9:.1f} GB/s (measured)"
    yield "memory", f"{machine.memory_bytes / 2**30:.0f} GiB, reads {reads}"
    for number, gpu in enumerate(machine.gpus):
        yield f"GPU {number}", f"{gpu.name}, {gpu.memory_bytes / 2**30:.0f} GiB"
    yield "system", f"{machine.os}, Python {machine.python}, llama.cpp {machine.llama_cpp}"


def _model(model: ModelInfo) -> str:
    size = f"{model.n_params / 1e9:.2f}B parameters"
    return f"{model.name}, {size}, {model.file_type}, SHA-256 {model.sha256}"


def _arm_text(fields: dict[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in fields.items() if name != "name")
