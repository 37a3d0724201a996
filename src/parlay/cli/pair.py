"""`parlay pair`: check that a drafter fits a target, measure it, and keep a record.

Turns options into calls of `parlay.pairing`; shows what came of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from parlay.cli.options import ContextSize, GpuLayers, Json, Threads
from parlay.cli.pair_measure import Settings, measure
from parlay.errors import BadRequest
from parlay.hub.resolving import resolve_drafter, resolve_model
from parlay.pairing.alignment import Alignment, check_pair
from parlay.pairing.baseline import Baseline, save_baseline
from parlay.pairing.manifest import Pair, all_pairs, find, user_manifest
from parlay.pairing.records import record, verify

_COLOURS = {"identical": "green", "compatible": "green", "incompatible": "red"}


def register(app: typer.Typer) -> None:
    """Add the verb and its parts."""
    verbs = typer.Typer(no_args_is_help=True, help="Check a pair, measure it, record it.")
    verbs.command(
        "check",
        help="Same vocabulary? And with --measure: is it worth it?",
        epilog="Example: parlay pair check target.gguf drafter.gguf --measure --cycles 100",
    )(check)
    for name, verb, says, example in (
        ("add", add, "Record a pair in your manifest.", "target.gguf drafter.gguf --notes 'mine'"),
        ("list", show_all, "Every pair the manifests know.", "--json"),
        ("show", show, "One pair in full.", "smollm2"),
        ("verify", verify_all, "Hash the recorded files again.", ""),
    ):
        epilog = f"Example: parlay pair {name} {example}".rstrip()
        verbs.command(name, help=says, epilog=epilog)(verb)
    app.add_typer(verbs, name="pair")


def check(
    target: Annotated[str, typer.Argument(help="GGUF file, or default.")],
    drafter: Annotated[
        str, typer.Argument(help="GGUF file, or default, default-block: the shipped drafters.")
    ],
    measured: Annotated[bool, typer.Option("--measure", help="Load both and generate.")] = False,
    cycles: Annotated[int, typer.Option(min=1, help="Answers to generate.")] = 12,
    window: Annotated[int, typer.Option("--window", "-k", min=1, max=32)] = 8,
    max_tokens: Annotated[int, typer.Option("--max-tokens", "-n", min=8)] = 64,
    suite: Annotated[str, typer.Option(help="core-12, core-60 or a JSONL file.")] = "core-60",
    context_size: ContextSize = 4096,
    threads: Threads = 0,
    gpu_layers: GpuLayers = -1,
    translate: Annotated[
        bool, typer.Option("--translate", help="Draft through text where vocabularies differ.")
    ] = False,
    json_output: Json = False,
) -> None:
    """Compare two tokenizers; with --measure, also acceptance and cost. 1: incompatible."""
    ours, theirs = resolve_model(target), resolve_drafter(drafter)
    alignment = check_pair(ours, theirs)
    usable = alignment.verdict != "incompatible" or translate
    baseline = None
    if not json_output:
        _print_alignment(alignment)
        if translate and alignment.verdict == "incompatible":
            typer.echo(
                "drafts would go through text: --translate in generate, runtime.translate in serve"
            )
    if measured and usable:
        settings = Settings(
            cycles, window, max_tokens, suite, context_size, threads, gpu_layers, translate
        )
        baseline = _measure(ours, theirs, settings)
        save_baseline(ours, theirs, baseline)
    if json_output:
        result = alignment.as_dict()
        result["measured"] = None if baseline is None else baseline.as_dict()
        typer.echo(json.dumps(result))
    elif baseline is not None:
        _print_baseline(baseline)
    if not usable:
        raise typer.Exit(1)


def _measure(target: Path, drafter: Path, settings: Settings) -> Baseline:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("answers", total=settings.cycles)
        return measure(target, drafter, settings, lambda n: progress.update(task, completed=n))


def _print_alignment(alignment: Alignment) -> None:
    out = Console(highlight=False)
    verdict = alignment.verdict
    out.print(f"[bold {_COLOURS[verdict]}]{verdict}[/]", end="  ")
    out.print(
        f"{alignment.target.kind}, {len(alignment.target.tokens)} tokens,"
        f" {alignment.trip.n_samples - len(alignment.trip.differing)} of"
        f" {alignment.trip.n_samples} samples cut alike"
    )
    for difference in alignment.differences:
        why = f"harmless: {difference.harmless}" if difference.harmless else "[red]harmful[/]"
        out.print(f"  {difference.what}: ", end="")
        out.print(difference.detail, markup=False, end="  ")
        out.print(f"[dim]{why}[/]")


def _print_baseline(baseline: Baseline) -> None:
    out = Console(highlight=False)
    out.print(f"\n{baseline.cycles} answers on {baseline.machine}")
    out.print(f"token acceptance   {baseline.token_acceptance:.1%}")
    out.print(f"acceptance length  {baseline.acceptance_length:.2f} tokens a round")
    out.print(f"drafter's cost     {baseline.draft_cost:.2f} of a target's token")
    out.print(categories(baseline))
    out.print(_windows(baseline))
    best = baseline.best_window
    out.print(f"best window: {best}" if best else "no window pays here: use --draft suffix")


def categories(baseline: Baseline) -> Table:
    """Acceptance by kind of prompt, and over all of them."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("prompts")
    for column in ("first token", "token acceptance", "acceptance length"):
        table.add_column(column, justify="right")
    for name, acceptance in baseline.by_category.items():
        first, length = baseline.first_by_category[name], baseline.length_by_category[name]
        table.add_row(name or "other", f"{first:.1%}", f"{acceptance:.1%}", f"{length:.2f}")
    whole = (f"{baseline.first_token:.1%}", f"{baseline.token_acceptance:.1%}")
    table.add_row("all", *whole, f"{baseline.acceptance_length:.2f}")
    return table


def _windows(baseline: Baseline) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("window", "predicted speed-up", "pays from an acceptance of"):
        table.add_column(column, justify="right")
    for k, gain in baseline.speedups.items():
        needed = baseline.break_even.get(k)
        table.add_row(k, f"{gain:.2f}x", "never" if needed is None else f"{needed:.0%}")
    return table


def add(
    target: Annotated[str, typer.Argument(help="File or name.")],
    drafter: Annotated[str, typer.Argument(help="File or name.")],
    notes: Annotated[str, typer.Option(help="Anything worth keeping.")] = "",
    json_output: Json = False,
) -> None:
    """Check a pair and write it into the manifest, with its last measurement."""
    ours, theirs = resolve_model(target), resolve_drafter(drafter)
    alignment = check_pair(ours, theirs)
    if alignment.verdict == "incompatible":
        worst = next(d for d in alignment.differences if d.harmless is None)
        raise BadRequest(
            f"{theirs.name} cannot draft for {ours.name} ({worst.what}: {worst.detail});"
            " parlay pair check shows all of it"
        )
    pair = record(ours, theirs, alignment, notes)
    if json_output:
        typer.echo(json.dumps(pair.model_dump(mode="json")))
    else:
        typer.echo(f"recorded: {pair.name} ({pair.verdict}, {len(pair.measured)} measured)")


def show_all(json_output: Json = False) -> None:
    """List both manifests, your own pairs first."""
    pairs, n_own = all_pairs(), len(user_manifest().pairs)
    if json_output:
        typer.echo(json.dumps([pair.model_dump(mode="json") for pair in pairs]))
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("target", "drafter", "verdict", "acceptance", "source"):
        table.add_column(column, overflow="fold")  # two names may differ only at their ends
    for i, pair in enumerate(pairs):
        source = "yours" if i < n_own else "shipped"
        table.add_row(pair.target.name, pair.drafter.name, pair.verdict, _acceptance(pair), source)
    Console(highlight=False).print(table)


def _acceptance(pair: Pair) -> str:
    return f"{pair.measured[-1].token_acceptance:.0%}" if pair.measured else "not measured"


def show(name: str, json_output: Json = False) -> None:
    """Show every pair whose name holds NAME. 1: there is none."""
    found = find(all_pairs(), name)
    records = [pair.model_dump(mode="json", exclude_none=True) for pair in found]
    if json_output:
        typer.echo(json.dumps(records))
    else:
        import yaml

        for item in records:
            typer.echo(yaml.safe_dump(item, sort_keys=False, allow_unicode=True))
    if not found:
        typer.echo(f"no pair's name holds {name!r}; parlay pair list shows all", err=True)
        raise typer.Exit(1)


def verify_all(json_output: Json = False) -> None:
    """Hash every recorded file. 1: one is gone or has changed."""
    found = verify(all_pairs())
    if json_output:
        rows = [{"name": v.member.name, "problem": v.problem} for v in found]
        typer.echo(json.dumps(rows))
    else:
        for item in found:
            typer.echo(f"{item.problem or 'ok':20} {item.member.name}")
        if not found:
            typer.echo("no file is recorded yet; parlay pair add records a pair")
    if any(item.problem for item in found):
        raise typer.Exit(1)
