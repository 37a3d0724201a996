"""`parlay ab`: two servers, or one server with one field changed, on your own prompts.

Turns options into a line-up and a run; keeps a history. Made for cron: one line, an exit code.
"""

from __future__ import annotations

import json
import tempfile
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from parlay import store
from parlay.bench import history
from parlay.bench.alarms import warnings_of
from parlay.bench.comparison import Comparison, Interval, compare
from parlay.bench.runner import MIN_PAIRS, Run, Runner, RunOptions, header
from parlay.bench.samplefile import SampleFile
from parlay.bench.subjects.lineup import Lineup
from parlay.bench.suite import Suite, load_suite
from parlay.cli import show_bench
from parlay.cli.options import Json
from parlay.errors import BadRequest

EXAMPLE = """
Example: parlay ab http://old:8080 http://new:8080 --prompts mine.jsonl

Example: parlay ab http://server:8080 --change speculation=false

Exit code: 0, or 1 if the second is slower (--expect faster: if it is not faster) or gave no result.
"""


class Expectation(str, Enum):
    not_slower = "not-slower"
    faster = "faster"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("ab", help="Compare two servers, or one changed field.", epilog=EXAMPLE)(ab)


def ab(
    a: Annotated[str, typer.Argument(help="URL of the server to compare with.")],
    b: Annotated[str | None, typer.Argument(help="URL of the other one.")] = None,
    change: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE changed in requests to the second.")
    ] = None,
    prompts: Annotated[str, typer.Option(help="JSONL file, or a built-in suite.")] = "core-12",
    pairs: Annotated[int, typer.Option(min=1)] = MIN_PAIRS,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", "-n", min=1)] = None,
    model: Annotated[str | None, typer.Option(help="Model name to ask for.")] = None,
    api_key_env: Annotated[str | None, typer.Option(help="Variable that holds the key.")] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    time_limit: Annotated[float, typer.Option(min=1, help="Seconds for one request.")] = 120.0,
    expect: Expectation = Expectation.not_slower,
    history_file: Annotated[
        Path | None, typer.Option("--history", help="Default: kept in the cache folder.")
    ] = None,
    json_output: Json = False,
) -> None:
    """Compare."""
    if b is None and not change:
        raise BadRequest("give a second URL, or a --change")
    suite = load_suite(prompts)
    options = RunOptions(pairs, seed, max_tokens, time_limit)
    with Lineup(show_bench.say) as lineup:
        key = show_bench.api_key(api_key_env)
        urls = [a] if b is None else [a, b]
        show_bench.add_endpoints(lineup, urls, change or [], model, key)
        run = _run(lineup, suite, options)
        arms = {name: subject.info for name, subject in lineup.arms.items()}
    categories = {prompt.id: prompt.category for prompt in suite.prompts}
    baseline, candidate = arms
    found = compare(run.samples, categories, baseline, candidate)
    path = history_file or _history_path(urls, change or [], suite)
    changed = _remember(path, suite, found, arms, run)
    warnings = [w.text for w in warnings_of(run.samples, arms)]
    if json_output:
        typer.echo(json.dumps(_as_dict(found, changed, warnings)))
    else:
        _show(found, changed, warnings)
    if not _as_expected(found, expect):
        raise typer.Exit(1)


def _run(lineup: Lineup, suite: Suite, options: RunOptions) -> Run:
    """Samples live as long as the command: a comparison is repeated, not resumed."""
    with tempfile.TemporaryDirectory(prefix="parlay-ab-") as folder:
        top = header(suite, lineup.arms, options)
        file = SampleFile(Path(folder) / "samples.jsonl", top)
        with show_bench.Bar() as bar:
            return Runner(suite, lineup.arms, options, file, bar).run()


def _history_path(urls: list[str], change: list[str], suite: Suite) -> Path:
    key = store.fingerprint(urls, change, suite.name)
    return store.cache_folder() / "ab" / f"{key}.jsonl"


def _remember(
    path: Path, suite: Suite, found: Comparison, arms: dict[str, Any], run: Run
) -> list[str]:
    """Add to the history; what changed since the last entry."""
    at = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    entry = history.entry_of(at, suite.sha256, found, arms, run.samples)
    earlier = history.read(path)
    if entry is None:
        return []
    history.append(path, entry)
    if not earlier:
        return []
    return [f"since {earlier[-1].at}: {line}" for line in history.changes(earlier[-1], entry)]


def _as_expected(found: Comparison, expect: Expectation) -> bool:
    verdict = found.wall.verdict if found.wall else "no result"
    if expect is Expectation.faster:
        return verdict == "faster"
    return verdict in ("faster", "no difference")


def _as_dict(found: Comparison, changed: list[str], warnings: list[str]) -> dict[str, Any]:
    return {
        "verdict": found.wall.verdict if found.wall else "no result",
        "comparison": found.model_dump(mode="json"),
        "changes": changed,
        "warnings": warnings,
    }


def _show(found: Comparison, changed: list[str], warnings: list[str]) -> None:
    out, err = Console(highlight=False), Console(stderr=True, highlight=False)
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in (f"{found.candidate} against {found.baseline}", "ratio", "95 %", "verdict"):
        table.add_column(name, no_wrap=True)
    rows = (
        ("wall time", found.wall),
        ("time to first token", found.first_token),
        ("decoding speed", found.speedup),
    )
    for name, interval in rows:
        table.add_row(name, *_cells(interval))
    out.print(table)
    same = found.identity
    out.print(f"same text: {same.n_identical} of {same.n_compared} prompts", markup=False)
    for line in changed:
        out.print(Text(line), soft_wrap=True)
    for warning in warnings:
        err.print(Text(f"warning: {warning}", style="yellow"), soft_wrap=True)


def _cells(interval: Interval | None) -> tuple[str, str, str]:
    if interval is None:
        return "-", "-", "no result"
    return f"{interval.ratio:.2f}x", f"{interval.low:.2f}-{interval.high:.2f}", interval.verdict
