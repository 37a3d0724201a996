"""`parlay profile`: what a workload spends its time on, and what speculation could gain there.

Reads logs through `parlay.planning`; shows routes and the rules that follow.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
import yaml
from rich.console import Console
from rich.table import Table

from parlay.cli.options import Json
from parlay.errors import BadRequest
from parlay.hub.resolving import resolve_drafter, resolve_model
from parlay.llama.facts import read_facts
from parlay.pairing.baseline import load_baseline
from parlay.planning.requests import read_logs
from parlay.planning.workload import Speeds, WorkloadRoute, profile, rules

EXAMPLE = """
Example: parlay profile requests.jsonl --target target.gguf --draft drafter.gguf

Reads Parlay's request log, or OpenAI-style JSON lines with `usage` (and `timings`, or ttft_ms and
latency_ms). Exit code 1: no request was found, or nothing would gain.
"""


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("profile", help="What a workload could gain, by route.", epilog=EXAMPLE)(
        profile_logs
    )


def profile_logs(
    logs: Annotated[list[Path], typer.Argument(help="Request logs, JSON lines.")],
    target: Annotated[
        str | None, typer.Option(help="File or name; with --draft: their measurement.")
    ] = None,
    draft: Annotated[str | None, typer.Option(help="The drafter: file or name.")] = None,
    speedup: Annotated[float | None, typer.Option(min=0.01, help="Of decoding.")] = None,
    prompt_tps: Annotated[float | None, typer.Option(min=0.01, help="For logs without times.")] = (
        None
    ),
    answer_tps: Annotated[float | None, typer.Option(min=0.01)] = None,
    json_output: Json = False,
) -> None:
    """Profile request logs."""
    log = read_logs(logs)
    if not log.requests:
        raise BadRequest(
            f"no request in {log.n_skipped} lines; name Parlay's request log"
            " (monitoring.request_log), or JSON lines with OpenAI's usage"
        )
    expected = _expected(target, draft) if speedup is None else speedup
    routes = profile(log.requests, speedup=expected, speeds=Speeds(prompt_tps, answer_tps))
    entries = rules(routes, log.requests)
    if json_output:
        typer.echo(
            json.dumps(
                {
                    "requests": len(log.requests),
                    "skipped_lines": log.n_skipped,
                    "routes": [route.as_dict() for route in routes],
                    "rules": entries,
                }
            )
        )
    else:
        _print(routes, entries, len(log.requests), log.n_skipped)
    if not any(route.advice == "speculate" for route in routes):
        raise typer.Exit(1)


def _expected(target: str | None, draft: str | None) -> float | None:
    """The best predicted speed-up of a measured pair."""
    if target is None and draft is None:
        return None
    if target is None or draft is None:
        raise BadRequest("a pair's measurement needs both --target and --draft")
    files = resolve_model(target), resolve_drafter(draft)
    for path in files:
        read_facts(path)  # what is no model was never measured
    baseline = load_baseline(*files)
    if baseline is None:
        raise BadRequest("this pair was not measured here; run parlay pair check --measure first")
    return max(1.0, *baseline.speedups.values()) if baseline.speedups else None


def _print(
    routes: list[WorkloadRoute], entries: list[dict[str, object]], n: int, skipped: int
) -> None:
    out = Console(highlight=False)
    out.print(f"{n} requests, {skipped} other lines")
    table = Table(box=None, padding=(0, 2, 0, 0))
    headings = ("route", "n", "prompt", "answer", "decode", "acceptance", "gain", "advice")
    for column in headings:
        table.add_column(column)
    for route in routes:
        table.add_row(
            route.name,
            str(route.n_requests),
            str(route.n_prompt),
            str(route.n_answer),
            _percent(route.decode_share),
            _percent(route.token_acceptance),
            "?" if route.gain is None else f"{route.gain:.2f}x",
            f"{route.advice}: {route.why}",
        )
    out.print(table)
    if entries:
        out.print("\nFor the deployment file:", style="bold")
        typer.echo(yaml.safe_dump({"routes": entries}, sort_keys=False))


def _percent(value: float | None) -> str:
    return "?" if value is None else f"{value:.0%}"
