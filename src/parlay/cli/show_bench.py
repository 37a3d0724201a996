"""How a benchmark looks in a terminal: a bar with the time left, a table, the warnings.

Knows records and consoles; measures nothing. Everything but the table goes to standard error.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from parlay.bench.comparison import Comparison, Interval
from parlay.bench.subjects.endpoint import parse_extra
from parlay.bench.subjects.lineup import Lineup
from parlay.errors import BadRequest
from parlay.results.record import Record

_COLOURS = {"faster": "green", "slower": "red", "no difference": "yellow", "no result": "red"}


def say(line: str) -> None:
    """A line of progress."""
    Console(stderr=True, highlight=False).print(Text(line, style="dim"), soft_wrap=True)


class Bar:
    """A progress bar that says how long it will still take."""

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._progress.add_task("", total=None, left="")

    def __call__(self, done: int, total: int, left_s: float | None, what: str) -> None:
        left = "" if left_s is None else f"{duration(left_s)} left"
        self._progress.update(
            self._task, completed=done, total=total, description=what[:24], left=left
        )

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._progress.stop()


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d} min" if minutes else f"{rest} s"


def result(record: Record) -> None:
    """The verdicts, and what to know before believing them."""
    out, err = Console(highlight=False), Console(stderr=True, highlight=False)
    out.print(f"{record.suite.name} against {record.baseline.name}", markup=False)
    out.print(table(record.comparisons))
    for comparison in record.comparisons:
        for line in _lines(record, comparison):
            out.print(line, soft_wrap=True)
    for warning in record.warnings:
        arm = f"{warning.arm}: " if warning.arm else ""
        err.print(Text(f"warning: {arm}{warning.text}", style="yellow"), soft_wrap=True)
    for check in record.checks:
        if check.ok is False:
            err.print(Text(f"implausible: {check.name}: {check.text}", style="red"), soft_wrap=True)


def table(comparisons: Sequence[Comparison]) -> Table:
    """One row for each candidate, one for each of its categories."""
    made = Table(box=None, padding=(0, 1, 0, 0))
    for name in ("candidate", "speed-up", "95 %", "tok/s", "accept", "same", "verdict"):
        side: Literal["left", "right"] = "left" if name in ("candidate", "verdict") else "right"
        made.add_column(name, justify=side, no_wrap=True)
    for c in comparisons:
        made.add_row(*_row(c), style="bold")
        for part in c.by_category:
            made.add_row(
                Text(f"  {part.category}"),
                f"{part.speedup.ratio:.2f}x",
                _range(part.speedup),
                "",
                "-" if part.token_acceptance is None else f"{part.token_acceptance:.0%}",
                "",
                Text(part.verdict, style=_COLOURS[part.verdict]),
            )
    return made


def _row(c: Comparison) -> list[Any]:
    speeds = (c.baseline_tokens_per_second, c.candidate_tokens_per_second)
    known = None not in speeds
    drafted = c.acceptance is not None and c.acceptance.counts.drafted > 0
    return [
        Text(c.candidate),
        f"{c.speedup.ratio:.2f}x" if c.speedup else "-",
        _range(c.speedup) if c.speedup else "-",
        f"{speeds[0]:.1f} -> {speeds[1]:.1f}" if known else "-",
        f"{c.acceptance.token_acceptance:.0%}" if c.acceptance and drafted else "-",
        f"{c.identity.n_identical}/{c.identity.n_compared}",
        Text(c.verdict, style=_COLOURS[c.verdict]),
    ]


def _range(interval: Interval) -> str:
    mark = "" if interval.scope == "tasks" else "*"
    if interval.high / interval.low > 1e6:
        return "unknown"
    return f"{interval.low:.2f}-{interval.high:.2f}{mark}"


def _lines(record: Record, c: Comparison) -> list[Text]:
    lines = []
    told = next((a for a in record.analyses if a.candidate == c.candidate), None)
    if told is not None:
        lines.append(Text(f"{c.candidate}: {told.break_even.text}"))
    for d in c.identity.differences[:3]:
        gap = "" if d.gap is None else f", {d.gap:.3f} apart in log-probability"
        what = f"{d.baseline!r} or {d.candidate!r}{gap}" if d.baseline else "token not known"
        lines.append(Text(f"{c.candidate}: {d.prompt} differs from token {d.token}: {what}"))
    if c.failures:
        lines.append(Text(f"{c.candidate}: {len(c.failures)} request(s) without a figure"))
    return lines


def api_key(variable: str | None) -> str | None:
    """The key in an environment variable: never on the command line, never in a record."""
    if variable is None:
        return None
    value = os.environ.get(variable)
    if not value:
        raise BadRequest(f"the variable {variable} is empty; put the API key there")
    return value


def add_endpoints(
    lineup: Lineup, urls: Sequence[str], changes: Sequence[str], model: str | None, key: str | None
) -> None:
    """One server with a changed field, or several servers; the first is the baseline."""
    fields: dict[str, Any] = {}
    for change in changes:
        fields |= parse_extra(change)
    if len(urls) == 1:
        if not fields:
            raise BadRequest("one endpoint and no --change is no comparison; give one of them")
        lineup.add_endpoint("as it is", urls[0], model=model, api_key=key)
        lineup.add_endpoint(
            "changed",
            urls[0],
            model=model,
            api_key=key,
            extra=fields,
            changed=", ".join(changes),
        )
        return
    for number, url in enumerate(urls):
        extra = fields if number == len(urls) - 1 else {}
        lineup.add_endpoint("ABCDEFGHIJ"[number], url, model=model, api_key=key, extra=extra)
