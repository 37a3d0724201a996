"""`parlay bench`: speculation against plain decoding, two servers against each other, and what
follows: a page of a result, a submission, the community's map.

Turns options into a line-up and a run, and shows what came of it; measures nothing itself.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from parlay import store
from parlay.bench import community, machine
from parlay.bench.compare import MIN_PAIRS
from parlay.bench.endpoint import parse_change
from parlay.bench.lineup import Lineup, OwnOptions, quick_suite
from parlay.bench.map import Reported, community_map
from parlay.bench.peer import PeerSettings
from parlay.bench.record import (
    MAX_RECORD_BYTES,
    BadResult,
    Comparison,
    Interval,
    Record,
    dump,
    parse,
)
from parlay.bench.report import markdown
from parlay.bench.report import report as html_page
from parlay.bench.result import Setting, assemble, model_info
from parlay.bench.run import Runner, RunOptions, SampleFile, header
from parlay.bench.suite import Suite, load_suite
from parlay.cli.common import Json, Set, deployment_of, described, loading, settings
from parlay.errors import BadRequest
from parlay.hub.resolving import resolve_model

EXAMPLE = """
Example: parlay bench --quick

Example: parlay bench -m target.gguf --draft suffix --draft drafter.gguf --suite core-60

Example: parlay bench http://old:8080 http://new:8080 --suite mine.jsonl

Example: parlay bench bench-results/1a2b3c4d-1 --report

A key for servers is taken from PARLAY_API_KEY. --suite: core-12, core-60, structured-24, edits-16
or a JSONL file; --peer: llama.cpp's own server with this --spec-type (KIND, or KIND:DRAFTER).
Exit code: 0, or 1 if a candidate is slower than the baseline or gave no result.
"""
QUICK_TOKENS = 32
# The whole command on the default model, loading and probing included: a slow or busy machine
# gets fewer pairs, and a warning, instead of a longer wait.
QUICK_S = 105.0
FULL_S = 540.0
_LEAST_S = 20.0
_REQUEST_S = 300.0
_COLOURS = {"faster": "green", "slower": "red", "no difference": "yellow", "no result": "red"}


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("bench", help=described("Measure whether speculation pays here.", EXAMPLE))(bench)


def bench(
    what: Annotated[
        list[str] | None,
        typer.Argument(help="Addresses of servers, the baseline first; or results that are there."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A look: one prompt a category, 32 tokens.")
    ] = False,
    model: Annotated[
        str, typer.Option("--model", "-m", help="GGUF file or name; of servers: to ask for.")
    ] = "default",
    draft: Annotated[
        list[str] | None, typer.Option(help="auto, suffix, PATH, or suffix,PATH.")
    ] = None,
    window: Annotated[
        list[str] | None,
        typer.Option("--window", "-k", help="auto (the controller's) or a number."),
    ] = None,
    suite: Annotated[str, typer.Option(help="Prompts: a name or a JSONL file.")] = "core-12",
    pairs: Annotated[int, typer.Option(min=1, help="Repeats of each prompt.")] = MIN_PAIRS,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", "-n", min=2, help="Of each answer.")
    ] = None,
    change: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE changed in requests to the last server.")
    ] = None,
    peer: Annotated[list[str] | None, typer.Option(help="llama.cpp's server beside it.")] = None,
    llama_server: Annotated[
        Path | None, typer.Option(help="The llama-server to use; else xllamacpp's.")
    ] = None,
    device: Annotated[
        list[str] | None, typer.Option(help="Such as CUDA0 or CPU; several are compared.")
    ] = None,
    library: Annotated[
        list[str] | None, typer.Option(help="Folder of a llama.cpp build; several are compared.")
    ] = None,
    set_key: Set = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with this command's unfinished run.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Folder of the run, or the file.")] = None,
    report: Annotated[
        bool, typer.Option("--report", help="Write a result's page and table; measure nothing.")
    ] = False,
    submit: Annotated[
        str | None, typer.Option(help="Name of a submission to make of results.")
    ] = None,
    map_folder: Annotated[
        Path | None, typer.Option("--map", help="Folder of submissions, to draw the map of.")
    ] = None,
    json_output: Json = False,
) -> None:
    """Measure, or show what was measured."""
    given = what or []
    if map_folder is not None:
        _map(map_folder, out or Path("map.html"), json_output)
    elif submit is not None:
        _submit(submit, [_read(name) for name in given], out or Path(f"{submit}.json"), json_output)
    elif report:
        _report([_path(name) for name in given], out, json_output)
    else:
        began = time.monotonic()
        prompts = load_suite(suite)
        own = None
        if not given:
            own = OwnOptions(
                model=model,
                drafts=tuple(draft or ["auto"]),
                windows=tuple(_window(text) for text in window or ["auto"]),
                loading=_loading(prompts.n_context, settings(set_key)),
                devices=tuple(device or ()),
                libraries=tuple(library or ()),
            )
        usual = (model, suite, pairs) == ("default", "core-12", MIN_PAIRS)
        longer = any((given, draft, window, peer, device, library, max_tokens))
        options = RunOptions(
            n_repeats=pairs,
            max_tokens=max_tokens or (QUICK_TOKENS if quick else None),
            time_limit_s=_REQUEST_S,
            # Without options it ends within ten minutes; whoever asks for more may wait for it.
            budget_s=QUICK_S if quick else FULL_S if usual and not longer else None,
        )
        with Lineup(_say) as lineup:
            if own is None:
                _add_servers(lineup, given, change or [], None if model == "default" else model)
            else:
                lineup.add_own(own)
                for server in _peers(own, peer or []):
                    lineup.add_peer(server, llama_server)
            chosen = quick_suite(prompts) if quick else prompts
            record = _run(lineup, chosen, options, own, quick, began, out, resume)
        if json_output:
            sys.stdout.write(dump(record))
        else:
            _show(record)
        # Of servers the whole request counts, of the own engine how fast it decodes.
        of_servers = bool(given)
        verdicts = [
            c.wall.verdict if of_servers and c.wall else c.verdict for c in record.comparisons
        ]
        if {"slower", "no result"} & set(verdicts):
            raise typer.Exit(1)


# -- measuring --------------------------------------------------------------------------------


def _loading(n_context: int, given: dict[str, Any]) -> dict[str, Any]:
    """As keywords of `Parlay`, but for what the arms differ in."""
    if strange := [key for key in given if not key.startswith("runtime.")]:
        raise BadRequest(f"--set {strange[0]} says nothing about how a model runs here")
    told = loading(deployment_of({"runtime.context_size": n_context} | given))
    return {k: v for k, v in told.items() if k not in ("target", "draft", "window", "devices")}


def _window(given: str) -> int | None:
    if given != "auto" and not given.isdecimal():
        raise BadRequest(f"a window of {given!r}; give auto or a number, such as 3")
    return None if given == "auto" else int(given)


def _add_servers(
    lineup: Lineup, urls: Sequence[str], changes: Sequence[str], model: str | None
) -> None:
    """One server with a changed field, or several servers; the first is the baseline."""
    fields: dict[str, Any] = {}
    for change in changes:
        fields |= parse_change(change)
    key = os.environ.get("PARLAY_API_KEY") or None
    add = partial(lineup.add_endpoint, model=model, api_key=key)
    if len(urls) == 1:
        if not fields:
            raise BadRequest("one server and no --change is no comparison; give one of them")
        add("as it is", urls[0])
        add("changed", urls[0], extra=fields, changed=", ".join(changes))
        return
    for number, url in enumerate(urls):
        add("ABCDEFGHIJKLMNOP"[number], url, extra=fields if number == len(urls) - 1 else {})


def _peers(own: OwnOptions, given: Sequence[str]) -> list[PeerSettings]:
    """A peer's speculation is compared with the same server without it, too."""
    made = []
    for spec in dict.fromkeys(["none", *given] if given else []):
        kind, _, drafter = spec.partition(":")
        made.append(
            PeerSettings(
                str(resolve_model(own.model)),
                kind,
                drafter or None,
                n_context=int(own.loading["context_size"]),
                threads=int(own.loading.get("threads", 0)),
                gpu_layers=int(own.loading.get("gpu_layers", -1)),
                device=own.devices[0] if len(own.devices) == 1 else None,
            )
        )
    return made


def _run(
    lineup: Lineup,
    suite: Suite,
    options: RunOptions,
    own: OwnOptions | None,
    quick: bool,
    began: float,
    out: Path | None,
    resume: bool,
) -> Record:
    if len(lineup.arms) < 2:
        raise BadRequest("one arm is no comparison; give a second address or a --change")
    top = header(suite, lineup.arms, options)
    folder = out or _folder(store.fingerprint(top)[:8], resume)
    samples = folder / "samples.jsonl"
    if (folder / "result.json").exists():
        raise BadRequest(f"{folder} holds a finished result; choose another --out")
    if samples.exists() and not resume:
        raise BadRequest(f"{folder} holds an unfinished run; go on with --resume, or choose --out")
    file = SampleFile(samples, top)
    host = machine.describe()
    if options.budget_s is not None:  # what loading took is part of it
        left = options.budget_s - (time.monotonic() - began)
        options = replace(options, budget_s=max(_LEAST_S, left))
    with _Bar() as bar:
        run = Runner(suite, lineup.arms, options, file, bar, machine.Sensors().read).run()
    setting = Setting(
        suite=suite,
        options=options,
        arms={name: subject.info for name, subject in lineup.arms.items()},
        machine=host,
        target=model_info(resolve_model(own.model)) if own else None,
        drafter=model_info(own.drafter) if own and own.drafter else None,
        quick=quick,
    )
    record = assemble(setting, run)
    _write(folder / "result.json", dump(record))
    _say(f"Kept in {folder}; for a page: parlay bench {folder} --report")
    return record


def _folder(name: str, resume: bool) -> Path:
    """A new folder for these options, or the one of their unfinished run."""
    number = 1
    while (folder := Path("bench-results") / f"{name}-{number}").exists():
        if resume and not (folder / "result.json").exists():
            return folder
        number += 1
    return folder


class _Bar:
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
        left = "" if left_s is None else f"{left_s // 60:.0f}:{left_s % 60:02.0f} min left"
        self._progress.update(
            self._task, completed=done, total=total, description=what[:24], left=left
        )

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._progress.stop()


# -- showing ----------------------------------------------------------------------------------


def _say(line: str) -> None:
    Console(stderr=True, highlight=False).print(Text(line, style="dim"), soft_wrap=True)


def _show(record: Record) -> None:
    """The verdicts, and what to know before believing them."""
    out, err = Console(highlight=False), Console(stderr=True, highlight=False)
    out.print(f"{record.suite.name} against {record.baseline.name}", markup=False)
    table = Table(box=None, padding=(0, 1, 0, 0))
    for name in ("candidate", "speed-up", "95 %", "tok/s", "accept", "same", "verdict"):
        left = name in ("candidate", "verdict")
        table.add_column(name, justify="left" if left else "right", no_wrap=True)
    for c in record.comparisons:
        for cells in _rows(c):
            table.add_row(
                *(Text(cell) for cell in cells[:-1]), Text(cells[-1], _COLOURS[cells[-1]])
            )
    out.print(table)
    for c in record.comparisons:
        if c.identity.differing:
            shown = ", ".join(c.identity.differing[:3])
            out.print(Text(f"{c.candidate}: {len(c.identity.differing)} texts differ: {shown}"))
        if c.failures:
            out.print(Text(f"{c.candidate}: {len(c.failures)} request(s) without a figure"))
    for warning in record.warnings:
        err.print(Text(f"warning: {warning}", style="yellow"), soft_wrap=True)
    for check in record.checks:
        if check.ok is False:
            err.print(Text(f"implausible: {check.name}: {check.text}", style="red"), soft_wrap=True)


def _rows(c: Comparison) -> list[list[str]]:
    """All prompts together, the whole request, the first token, then each category."""
    a, b, same = c.baseline_tokens_per_second, c.candidate_tokens_per_second, c.identity
    taken = c.acceptance if c.acceptance and c.acceptance.counts.drafted else None
    whole = [
        c.candidate,
        *_interval(c.speedup),
        f"{a:.1f} -> {b:.1f}" if a and b else "-",
        f"{taken.token_acceptance:.0%}" if taken else "-",
        f"{same.n_identical}/{same.n_compared}",
        c.verdict,
    ]
    parts: list[tuple[str, Interval | None, float | None]]
    parts = [("whole request", c.wall, None), ("first token", c.first_token, None)]
    parts += [(p.category, p.speedup, p.token_acceptance) for p in c.by_category]
    rows = [
        [
            f"  {name}",
            *_interval(found),
            "",
            "" if share is None else f"{share:.0%}",
            "",
            found.verdict,
        ]
        for name, found, share in parts
        if found is not None
    ]
    return [whole, *rows]


def _interval(found: Interval | None) -> tuple[str, str]:
    return ("-", "-") if found is None else (f"{found.ratio:.2f}x", str(found))


# -- what is made of results ------------------------------------------------------------------


def _path(name: str) -> Path:
    path = Path(name)
    return path / "result.json" if path.is_dir() else path


def _read(name: str) -> Record:
    """A result from a file of bounded size."""
    path = _path(name)
    try:
        with path.open("rb") as file:
            return parse(file.read(MAX_RECORD_BYTES + 1), str(path))
    except OSError as error:
        raise BadRequest(f"{path}: {error.strerror}; give a result.json or its folder") from error


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    except OSError as error:
        raise BadRequest(f"cannot write {path}: {error.strerror}; use --out") from error


def _tell(json_output: bool, told: dict[str, Any], lines: Sequence[str]) -> None:
    typer.echo(json.dumps(told) if json_output else "\n".join(lines))


def _report(paths: Sequence[Path], out: Path | None, json_output: bool) -> None:
    """A page and a Markdown table beside each result."""
    if not paths:
        raise BadRequest("--report of what? name a result.json or its folder")
    for path in paths:
        record = _read(str(path))
        page = out or path.with_name("report.html")
        written: dict[Path, Callable[[Record], str]] = {
            page: html_page,
            page.with_suffix(".md"): markdown,
        }
        for name, make in written.items():
            _write(name, make(record))
        names = [str(name) for name in written]
        _tell(json_output, {"html": names[0], "markdown": names[1], "id": record.id}, names)


def _submit(name: str, records: Sequence[Record], out: Path, json_output: bool) -> None:
    """One file for the community's folder. Nothing is sent; exit code 1: it is not believable."""
    try:
        made = community.build(name, "", records)
    except BadResult as error:
        raise BadRequest(error.message) from error
    problems = [p for record in records for p in community.problems_of(record)]
    if not problems:
        _write(out, dump(made))
    lines = [*community.preview(made), *(f"refused   {problem}" for problem in problems)]
    if not problems:
        lines.append(f"written   {out}: look at it, then send it as CONTRIBUTING.md says")
    _tell(json_output, {"file": None if problems else str(out), "problems": problems}, lines)
    if problems:
        raise typer.Exit(1)


def _map(folder: Path, out: Path, json_output: bool) -> None:
    """The community's results as one page; what cannot be believed is left out and named."""
    if not folder.is_dir():
        raise BadRequest(f"{folder} is not a folder; give one that holds submissions")
    verdicts = community.validate(folder)
    shown = [v.submission for v in verdicts if v.submission is not None and not v.problems]
    refused = {v.file: list(v.problems) for v in verdicts if v.problems}
    _write(out, community_map(shown, Reported.shipped()))
    lines = [f"left out  {file}: {'; '.join(why)}" for file, why in refused.items()]
    lines.append(f"{out}: {len(shown)} submission(s)")
    _tell(json_output, {"map": str(out), "submissions": len(shown), "refused": refused}, lines)
    if refused:
        raise typer.Exit(1)
