"""A result as a Markdown table, for a README or an issue.

Knows records; escapes what Markdown would read as its own.
"""

from __future__ import annotations

import re

from parlay.bench.comparison import Comparison
from parlay.results.record import Record
from parlay.results.report import interval_text

_SIGNS = re.compile(r"([\\`*_\[\]<>|~#!])")


def plain(text: object) -> str:
    """Text that stays text."""
    return _SIGNS.sub(r"\\\1", " ".join(str(text).split()))


def markdown(record: Record) -> str:
    """Verdicts, the table by task, the warnings, and what it was run on."""
    machine = record.machine
    where = ", ".join(gpu.name for gpu in machine.gpus) or machine.cpu
    model = record.target.name if record.target else (record.baseline.model or "a server")
    lines = [
        f"**{plain(model)}** on {plain(where)}: {plain(record.suite.name)},"
        f" {record.run.n_repeats_done} pairs a prompt, {plain(record.created)},"
        f" result `{record.id}`",
        "",
        "| candidate | task | speed-up | 95 % interval | accepted | verdict |",
        "|---|---|--:|--:|--:|---|",
    ]
    for c in record.comparisons:
        lines += _rows(c)
    lines += ["", *(_sentence(c) for c in record.comparisons)]
    for w in record.warnings:
        arm = f"{w.arm}: " if w.arm else ""
        lines.append(f"- Warning: {plain(arm + w.text)}")
    return "\n".join(lines) + "\n"


def _rows(c: Comparison) -> list[str]:
    taken, rows = c.acceptance, []
    if c.speedup:
        share = f"{taken.token_acceptance:.0%}" if taken and taken.counts.drafted else "-"
        cells = [f"**{c.speedup.ratio:.2f}x**", plain(interval_text(c.speedup)), share]
        rows.append(f"| {plain(c.candidate)} | all | {' | '.join(cells)} | {c.verdict} |")
    for part in c.by_category:
        share = "-" if part.token_acceptance is None else f"{part.token_acceptance:.0%}"
        cells = [f"{part.speedup.ratio:.2f}x", plain(interval_text(part.speedup)), share]
        rows.append(f"| | {plain(part.category)} | {' | '.join(cells)} | {part.verdict} |")
    return rows


def _sentence(c: Comparison) -> str:
    speeds = (c.baseline_tokens_per_second, c.candidate_tokens_per_second)
    speed = f"{speeds[0]:.1f} to {speeds[1]:.1f} tok/s; " if None not in speeds else ""
    same = f"{c.identity.n_identical} of {c.identity.n_compared} texts identical"
    return f"{plain(c.candidate)} against {plain(c.baseline)}: {speed}{same}."
