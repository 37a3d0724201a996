"""`parlay bench`: speculation against plain decoding, interleaved and repeated, with a verdict.

Turns options into a line-up and a run; knows nothing of how either works.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from parlay import store
from parlay.bench import machine as machines
from parlay.bench import window_costs as cost_table
from parlay.bench.inspection import inspect
from parlay.bench.readings import Sensors
from parlay.bench.runner import MIN_PAIRS, Runner, RunOptions, header
from parlay.bench.samplefile import SampleFile
from parlay.bench.subjects.lineup import Lineup, OwnOptions, drafter_path, quick_suite
from parlay.bench.subjects.peer import PeerSettings
from parlay.bench.suite import Suite, load_suite
from parlay.cli import show_bench
from parlay.errors import BadRequest
from parlay.hub.resolving import resolve_model
from parlay.results.assemble import Setting, assemble, model_info
from parlay.results.record import ModelInfo, Record, dump

EXAMPLE = """
Example: parlay bench --quick

Example: parlay bench -m target.gguf --draft suffix --draft drafter.gguf --suite core-60

Example: parlay bench --window auto --window 3 --window 5 (the controller and fixed windows)

Example: parlay bench --peer ngram-simple (llama.cpp's own server beside Parlay)

The run is kept in a folder and goes on where it stopped when the same command is given again.
Exit code: 0, or 1 if a candidate is slower than the baseline or gave no result.
"""
QUICK_TOKENS = 32
# The whole command on the default model, loading and probing included: a slow or busy machine
# gets fewer pairs, and a warning, instead of a longer wait.
QUICK_S = 105.0
FULL_S = 540.0
_LEAST_S = 20.0


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("bench", help="Measure whether speculation pays here.", epilog=EXAMPLE)(bench)


def bench(
    model: Annotated[str, typer.Option("--model", "-m", help="GGUF file, or default.")] = "default",
    draft: Annotated[
        list[str] | None,
        typer.Option(help="auto, ngram, suffix, PATH, or suffix,PATH. May repeat."),
    ] = None,
    window: Annotated[
        list[str] | None,
        typer.Option("--window", "-k", help="auto (the controller's) or a number. May repeat."),
    ] = None,
    suite: Annotated[
        str, typer.Option(help="core-12, core-60, structured-24, edits-16 or a JSONL file.")
    ] = "core-12",
    quick: Annotated[bool, typer.Option(help="A look: one prompt a category, 32 tokens.")] = False,
    pairs: Annotated[int, typer.Option(min=1, help="Repeats of each prompt.")] = MIN_PAIRS,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", "-n", min=2)] = None,
    endpoint: Annotated[
        list[str] | None, typer.Option(help="URL of a server, baseline first. Not the own runtime.")
    ] = None,
    change: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE changed in requests to the last endpoint.")
    ] = None,
    endpoint_model: Annotated[str | None, typer.Option(help="Model name to ask for.")] = None,
    api_key_env: Annotated[str | None, typer.Option(help="Variable that holds the key.")] = None,
    peer: Annotated[
        list[str] | None, typer.Option(help="llama.cpp's server with this --spec-type. Repeat.")
    ] = None,
    peer_drafter: Annotated[str | None, typer.Option(help="Its draft model.")] = None,
    peer_window: Annotated[int | None, typer.Option(min=1, help="Its --spec-draft-n-max.")] = None,
    peer_binary: Annotated[Path | None, typer.Option(help="A llama-server to use.")] = None,
    devices: Annotated[str, typer.Option(help="Such as CUDA0,Vulkan0,CPU: compared.")] = "",
    libraries: Annotated[
        list[str] | None, typer.Option("--library", help="Folder of a llama.cpp build. Repeat.")
    ] = None,
    mode: Annotated[str | None, typer.Option(help="exact or faithful.")] = None,
    threads: Annotated[int, typer.Option(min=0, help="0: physical cores.")] = 0,
    gpu_layers: Annotated[int, typer.Option(help="-1: all, if there is a GPU.")] = -1,
    seed: Annotated[int, typer.Option(min=0, help="Order of prompts.")] = 0,
    cool_down: Annotated[float, typer.Option(min=0, help="Seconds between pairs.")] = 0.0,
    time_limit: Annotated[float, typer.Option(min=1, help="Seconds for one request.")] = 300.0,
    budget: Annotated[
        float | None,
        typer.Option(min=1, help="Seconds in all: no repeat is begun that ends later."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; the same one resumes.")
    ] = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="The record on standard out.")
    ] = False,
) -> None:
    """Measure."""
    began = time.monotonic()
    more = (draft, window, peer, endpoint, devices, libraries, max_tokens)
    as_it_comes = (model, suite, pairs) == ("default", "core-12", MIN_PAIRS) and not any(more)
    options = RunOptions(
        n_repeats=pairs,
        seed=seed,
        max_tokens=max_tokens or (QUICK_TOKENS if quick else None),
        time_limit_s=time_limit,
        cool_down_s=cool_down,
        budget_s=budget or _budget(quick, as_it_comes),
    )
    prompts = quick_suite(load_suite(suite)) if quick else load_suite(suite)
    own = OwnOptions(
        model=model,
        drafts=tuple(draft or ["auto"]),
        windows=tuple(_window(given) for given in window or ["auto"]),
        mode=mode,
        n_context=prompts.n_context,
        threads=threads,
        gpu_layers=gpu_layers,
        devices=tuple(name.strip() for name in devices.split(",") if name.strip()),
        libraries=tuple(libraries or ()),
    )
    with Lineup(show_bench.say) as lineup:
        if endpoint:
            key = show_bench.api_key(api_key_env)
            show_bench.add_endpoints(lineup, endpoint, change or [], endpoint_model, key)
        else:
            lineup.add_own(own)
            for spec_type in _peers(peer):
                target = str(resolve_model(model))
                settings = PeerSettings(
                    target, spec_type, peer_drafter, peer_window, prompts.n_context, threads,
                    gpu_layers, own.devices[0] if len(own.devices) == 1 else None,
                )  # fmt: skip
                lineup.add_peer(settings, peer_binary)
        record = _run(lineup, prompts, options, None if endpoint else own, out, quick, began)
    if json_output:
        sys.stdout.write(dump(record))
    else:
        show_bench.result(record)
    if any(c.verdict in ("slower", "no result") for c in record.comparisons):
        raise typer.Exit(1)


def _window(given: str) -> int | None:
    if given == "auto":
        return None
    if not given.isdecimal():
        raise BadRequest(f"a window of {given!r}; give auto or a number, such as 3")
    return int(given)


def _budget(quick: bool, as_it_comes: bool) -> float | None:
    """Without options it ends within ten minutes; whoever asks for more may wait for it."""
    if quick:
        return QUICK_S
    return FULL_S if as_it_comes else None


def _peers(given: list[str] | None) -> list[str]:
    """A peer's speculation is compared with the same server without it, too."""
    if not given:
        return []
    return list(dict.fromkeys(["none", *given]))


def _run(
    lineup: Lineup,
    suite: Suite,
    options: RunOptions,
    own: OwnOptions | None,
    out: Path | None,
    quick: bool,
    began: float,
) -> Record:
    if len(lineup.arms) < 2:
        raise BadRequest("one arm is no comparison; give a second --endpoint or a --change")
    top = header(suite, lineup.arms, options)
    folder = out or _folder(store.fingerprint(top)[:8])
    if (folder / "result.json").exists():
        raise BadRequest(f"{folder} holds a finished result; choose another --out")
    file = SampleFile(folder / "samples.jsonl", top)
    machine = machines.describe()
    costs = cost_table.measure(lineup.runtime) if lineup.runtime is not None else None
    if options.budget_s is not None:
        spent = time.monotonic() - began
        options = replace(options, budget_s=max(_LEAST_S, options.budget_s - spent))
    with show_bench.Bar() as bar:
        runner = Runner(suite, lineup.arms, options, file, bar, Sensors().read)
        run = runner.run()
    show_bench.say("Comparing texts ...")
    setting = Setting(
        suite=suite,
        options=options,
        arms={name: subject.info for name, subject in lineup.arms.items()},
        machine=machine,
        costs=costs,
        differences=inspect(suite, lineup.arms, options, run),
        quick=quick,
        **(_files(own) if own else {}),
    )
    record = assemble(setting, run)
    (folder / "result.json").write_text(dump(record), "utf-8")
    show_bench.say(f"Kept in {folder}; see it with: parlay report {folder}")
    return record


def _files(own: OwnOptions) -> dict[str, ModelInfo | None]:
    """What is in the model files that were loaded."""
    drafter = drafter_path(own)
    return {
        "target": model_info(resolve_model(own.model)),
        "drafter": model_info(drafter) if drafter else None,
    }


def _folder(name: str) -> Path:
    """A folder for these options: the unfinished one if there is one, else a new one."""
    number = 1
    while (folder := Path("bench-results") / f"{name}-{number}").joinpath("result.json").exists():
        number += 1
    return folder
