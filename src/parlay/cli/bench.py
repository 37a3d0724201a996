"""`parlay bench`: speculation against plain decoding, interleaved and repeated, with a verdict.

Turns options into a line-up and a run; knows nothing of how either works.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from parlay import store
from parlay.bench import machine_facts
from parlay.bench import window_costs as cost_table
from parlay.bench.inspection import inspect
from parlay.bench.readings import Sensors
from parlay.bench.runner import MIN_PAIRS, Runner, RunOptions, header
from parlay.bench.samplefile import SampleFile
from parlay.bench.subjects.lineup import Lineup, OwnOptions, drafter_path, quick_suite
from parlay.bench.subjects.peer import PeerSettings
from parlay.bench.suite import Suite, load_suite
from parlay.cli import show_bench
from parlay.cli.option_groups import with_groups
from parlay.cli.options import GpuLayers, Threads
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


@dataclass(frozen=True, slots=True)
class BenchCommand:
    """What was asked for."""

    model: Annotated[str, typer.Option("--model", "-m", help="GGUF file, or default.")] = "default"
    draft: Annotated[
        list[str] | None,
        typer.Option(help="auto, ngram, suffix, PATH, or suffix,PATH. May repeat."),
    ] = None
    window: Annotated[
        list[str] | None,
        typer.Option("--window", "-k", help="auto (the controller's) or a number. May repeat."),
    ] = None
    suite: Annotated[
        str, typer.Option(help="core-12, core-60, structured-24, edits-16 or a JSONL file.")
    ] = "core-12"
    quick: Annotated[bool, typer.Option(help="A look: one prompt a category, 32 tokens.")] = False
    pairs: Annotated[int, typer.Option(min=1, help="Repeats of each prompt.")] = MIN_PAIRS
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", "-n", min=2)] = None
    endpoint: Annotated[
        list[str] | None, typer.Option(help="URL of a server, baseline first. Not the own runtime.")
    ] = None
    change: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE changed in requests to the last endpoint.")
    ] = None
    endpoint_model: Annotated[str | None, typer.Option(help="Model name to ask for.")] = None
    api_key_env: Annotated[str | None, typer.Option(help="Variable that holds the key.")] = None
    peer: Annotated[
        list[str] | None, typer.Option(help="llama.cpp's server with this --spec-type. Repeat.")
    ] = None
    peer_drafter: Annotated[str | None, typer.Option(help="Its draft model.")] = None
    peer_window: Annotated[int | None, typer.Option(min=1, help="Its --spec-draft-n-max.")] = None
    peer_binary: Annotated[Path | None, typer.Option(help="A llama-server to use.")] = None
    devices: Annotated[str, typer.Option(help="Such as CUDA0,Vulkan0,CPU: compared.")] = ""
    libraries: Annotated[
        list[str] | None, typer.Option("--library", help="Folder of a llama.cpp build. Repeat.")
    ] = None
    mode: Annotated[str | None, typer.Option(help="exact or faithful.")] = None
    threads: Threads = 0
    gpu_layers: GpuLayers = -1
    seed: Annotated[int, typer.Option(min=0, help="Order of prompts.")] = 0
    cool_down: Annotated[float, typer.Option(min=0, help="Seconds between pairs.")] = 0.0
    time_limit: Annotated[float, typer.Option(min=1, help="Seconds for one request.")] = 300.0
    budget: Annotated[
        float | None,
        typer.Option(min=1, help="Seconds in all: no repeat is begun that ends later."),
    ] = None
    out: Annotated[Path | None, typer.Option(help="Folder of the run; the same one resumes.")] = (
        None
    )
    json_output: Annotated[bool, typer.Option("--json", help="The record on standard out.")] = False

    @property
    def as_it_comes(self) -> bool:
        """Whether nothing was said that makes it longer."""
        more = (self.draft, self.window, self.peer, self.endpoint, self.devices, self.libraries)
        usual = (self.model, self.suite, self.pairs) == ("default", "core-12", MIN_PAIRS)
        return usual and not any((*more, self.max_tokens))

    def prompts(self) -> Suite:
        found = load_suite(self.suite)
        return quick_suite(found) if self.quick else found

    def run(self) -> RunOptions:
        """How often and how long."""
        return RunOptions(
            n_repeats=self.pairs,
            seed=self.seed,
            max_tokens=self.max_tokens or (QUICK_TOKENS if self.quick else None),
            time_limit_s=self.time_limit,
            cool_down_s=self.cool_down,
            budget_s=self.budget or _budget(self.quick, self.as_it_comes),
        )

    def own(self, n_context: int) -> OwnOptions:
        """The own runtime's side."""
        return OwnOptions(
            model=self.model,
            drafts=tuple(self.draft or ["auto"]),
            windows=tuple(_window(given) for given in self.window or ["auto"]),
            mode=self.mode,
            n_context=n_context,
            threads=self.threads,
            gpu_layers=self.gpu_layers,
            devices=tuple(name.strip() for name in self.devices.split(",") if name.strip()),
            libraries=tuple(self.libraries or ()),
        )

    def peers(self, own: OwnOptions) -> Iterator[PeerSettings]:
        """llama.cpp's servers beside it, on the same device."""
        for spec_type in _peers(self.peer):
            yield PeerSettings(
                str(resolve_model(self.model)),
                spec_type,
                self.peer_drafter,
                self.peer_window,
                own.n_context,
                self.threads,
                self.gpu_layers,
                own.devices[0] if len(own.devices) == 1 else None,
            )


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("bench", help="Measure whether speculation pays here.", epilog=EXAMPLE)(
        with_groups(bench)
    )


def bench(options: BenchCommand) -> None:
    """Measure."""
    began = time.monotonic()
    prompts = options.prompts()
    own = None if options.endpoint else options.own(prompts.n_context)
    with Lineup(show_bench.say) as lineup:
        _line_up(lineup, options, own)
        record = _run(lineup, prompts, options, own, began)
    if options.json_output:
        sys.stdout.write(dump(record))
    else:
        show_bench.result(record)
    if any(c.verdict in ("slower", "no result") for c in record.comparisons):
        raise typer.Exit(1)


def _line_up(lineup: Lineup, options: BenchCommand, own: OwnOptions | None) -> None:
    """Servers by their addresses, or the own runtime and its peers."""
    if own is None:
        key = show_bench.api_key(options.api_key_env)
        show_bench.add_endpoints(
            lineup, options.endpoint or [], options.change or [], options.endpoint_model, key
        )
        return
    lineup.add_own(own)
    for settings in options.peers(own):
        lineup.add_peer(settings, options.peer_binary)


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
    lineup: Lineup, suite: Suite, given: BenchCommand, own: OwnOptions | None, began: float
) -> Record:
    if len(lineup.arms) < 2:
        raise BadRequest("one arm is no comparison; give a second --endpoint or a --change")
    options = given.run()
    top = header(suite, lineup.arms, options)
    folder = given.out or _folder(store.fingerprint(top)[:8])
    if (folder / "result.json").exists():
        raise BadRequest(f"{folder} holds a finished result; choose another --out")
    file = SampleFile(folder / "samples.jsonl", top)
    machine = machine_facts.describe()
    costs = cost_table.measure(lineup.runtime) if lineup.runtime is not None else None
    options = _in_time(options, began)
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
        quick=given.quick,
        **(_files(own) if own else {}),
    )
    record = assemble(setting, run)
    (folder / "result.json").write_text(dump(record), "utf-8")
    show_bench.say(f"Kept in {folder}; see it with: parlay report {folder}")
    return record


def _in_time(options: RunOptions, began: float) -> RunOptions:
    """What loading took is part of the budget."""
    if options.budget_s is None:
        return options
    left = options.budget_s - (time.monotonic() - began)
    return replace(options, budget_s=max(_LEAST_S, left))


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
