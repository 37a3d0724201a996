"""The map: where speculation helps and where it hurts, as one page that needs no network.

Knows submissions and what others reported; decides nothing, shows intervals.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import resources
from typing import Any, Final

from parlay.bench.comparison import Comparison, Interval
from parlay.results.record import Record
from parlay.results.reported import Reported
from parlay.results.submission import Submission
from parlay.web.html import escape, page

Row = dict[str, Any]

# Upper bounds in billions of parameters, and what a class is called.
SIZES: Final = (
    (1.0, "under 1B"),
    (4.0, "1B to 4B"),
    (10.0, "4B to 10B"),
    (20.0, "10B to 20B"),
    (40.0, "20B to 40B"),
    (float("inf"), "40B and more"),
)

BODY: Final = """
<h1>Where speculative decoding helps, and where it hurts</h1>
<p>Every measured figure is a geometric mean over prompts with a 95 % interval: the same machine and
the same library, with and without speculation in turns. A triangle up means faster, a triangle down
slower, a circle no difference; hollow marks are <span class="badge">reported elsewhere</span>.</p>
<p class="soft">{about}</p>
<form id="filters">
<label>Search<input id="search" type="search" autocomplete="off"></label>
<label>Layer<select id="layer"><option value="">all</option><option value="measured">measured with
Parlay</option><option value="reported">reported elsewhere</option></select></label>
<label>Hardware<select id="device"><option value="">all</option></select></label>
<label>Model size<select id="size"><option value="">all</option></select></label>
<label>Method<select id="method"><option value="">all</option></select></label>
<label>Task<select id="task"><option value="">all</option></select></label>
<button type="reset">Reset</button>
</form>
<p class="soft" id="count" aria-live="polite"></p>
<p class="soft">Speed-up over plain decoding, against the size of the model.</p>
<div id="overview"></div>
<div class="scroll"><table><thead><tr id="head"></tr></thead><tbody id="rows"></tbody></table></div>
<p id="empty" hidden>Nothing fits these filters.</p>
<p class="soft">Measured results: CC BY 4.0, by those who sent them.</p>
<noscript>This page draws its table with a script that it brings along; please allow it.</noscript>
"""


def community_map(submissions: Sequence[Submission], reported: Reported) -> str:
    """The page."""
    rows = [*_measured(submissions), *_reported(reported)]
    script, css = _asset("map.js"), _asset("map.css")
    title = "Parlay: where speculative decoding helps"
    body = BODY.replace("{about}", escape(reported.about))
    return page(title, body, [script], {"rows": rows}, css)


def _asset(name: str) -> str:
    return (resources.files("parlay.results") / "data" / name).read_text("utf-8")


def _measured(submissions: Sequence[Submission]) -> Iterable[Row]:
    for submission in submissions:
        for record in submission.results:
            for number, comparison in enumerate(record.comparisons):
                yield from _comparison_rows(submission, record, comparison, number)


def _comparison_rows(
    submission: Submission, record: Record, c: Comparison, number: int
) -> Iterable[Row]:
    arm, gpus = record.arm(c.candidate), record.machine.gpus
    on_cpu = not gpus or (arm.device or "").startswith("CPU")
    hardware = record.machine.cpu if on_cpu else ", ".join(gpu.name for gpu in gpus)
    model = record.target.name if record.target else (arm.model or "unknown")
    common = {
        "layer": "measured",
        "hardware": hardware,
        "device": "cpu" if on_cpu else "gpu",
        "model": model,
        "params_b": round(record.target.n_params / 1e9, 3) if record.target else 0.0,
        "method": f"{arm.kind} {arm.method}",
        "source": submission.name,
        "url": "",
    }
    parts = [("all", c.speedup), *((p.category, p.speedup) for p in c.by_category)]
    for task, interval in parts:
        if interval is not None:
            key = f"{record.id}-{number}-{task}"
            yield _row({**common, "id": key, "task": task, **_figures(interval)}, submission.notes)


def _figures(interval: Interval) -> Row:
    return {
        "ratio": interval.ratio,
        "low": interval.low,
        "high": interval.high,
        "verdict": interval.verdict,
    }


def _reported(reported: Reported) -> Iterable[Row]:
    number = 0
    for study in reported.studies:
        for row in study.rows:
            number += 1
            fields = row.model_dump(exclude={"speedup", "baseline", "candidate"})
            yield _row(
                {
                    **fields,
                    "layer": "reported",
                    "id": f"reported-{number}",
                    "ratio": row.speedup,
                    "low": None,
                    "high": None,
                    # No interval, no verdict: only the sign of what was said.
                    "verdict": "faster" if row.speedup > 1 else "slower",
                    "source": study.study,
                    "url": study.source,
                },
                study.protocol,
            )


def _row(fields: Row, notes: str) -> Row:
    size = next(name for limit, name in SIZES if fields["params_b"] < limit)
    named = ("hardware", "model", "method", "task", "source")
    words = " ".join([*(str(fields[name]) for name in named), notes]).lower()
    return {**fields, "size": size, "words": words}
