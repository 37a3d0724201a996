"""`parlay distill`: make a drafter for a target out of the target alone.

Turns options into the phases of `parlay.training`, shows them, measures and records the pair.
"""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from parlay.cli.option_groups import with_groups
from parlay.cli.options import GpuLayers, Json, Threads
from parlay.cli.pair import categories
from parlay.cli.pair_measure import Settings, measure
from parlay.errors import BadRequest
from parlay.hub.resolving import resolve_drafter, resolve_model
from parlay.pairing.alignment import check_pair
from parlay.pairing.baseline import Baseline, save_baseline
from parlay.pairing.records import record
from parlay.store import file_identity

EXAMPLE = """
Example: parlay distill target.gguf -o drafter.gguf --tokens 2000000

Example: parlay distill default -o drafter.gguf --preset small --minutes 30 --prompts requests.jsonl

Example: parlay distill default -o mine.gguf --start default --prompts requests.jsonl --minutes 10

Example: parlay distill default -o block.gguf --kind dflash

Text and checkpoints are kept in a folder beside the drafter; the same command goes on where it
stopped. Then: parlay generate "..." -m target.gguf (the pair is in your manifest).
"""
_FILE_TYPES = ("q4_0", "q8_0", "f16")
_PRESET = "base"
_WINDOW = 4

# By a recipe, shown by a bar: what exports the drafter, and what is told of its training.
_Training = Callable[[Any, Bar], tuple[Callable[..., list[Path]], Any]]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where everything comes from and goes."""

    target: Path
    out: Path
    start: Path | None = None

    @property
    def work(self) -> Path:
        return self.out.with_suffix(".distill")


@dataclass(frozen=True, slots=True)
class DistillOptions:
    """What was asked for."""

    target: Annotated[str, typer.Argument(help="GGUF of an instruction model, or default.")]
    out: Annotated[Path, typer.Option("--out", "-o", help="The drafter's file.")]
    kind: Annotated[
        str, typer.Option(help="llama: a small model; dflash: blocks from the target's states.")
    ] = "llama"
    preset: Annotated[
        str,
        typer.Option(
            help="tiny, small, deep, base, wide, large; dflash: tiny, small, base, shared."
            " Default: base."
        ),
    ] = ""
    start: Annotated[
        str | None,
        typer.Option(help="Begin with the weights of this drafter (GGUF), or of default."),
    ] = None
    tokens: Annotated[int, typer.Option(min=1, help="Text to write, in tokens.")] = 2_000_000
    write_minutes: Annotated[float, typer.Option(min=0, help="0: until it is written.")] = 0
    passes: Annotated[float, typer.Option(min=0.01, help="Over the text.")] = 10.0
    minutes: Annotated[float, typer.Option(min=0, help="Of training; 0: all passes.")] = 0
    prompts: Annotated[
        Path | None, typer.Option(help="Your prompts: JSON lines, a request log, or plain text.")
    ] = None
    file_type: Annotated[
        list[str] | None, typer.Option(help="q4_0, q8_0, f16; the first is -o. May repeat.")
    ] = None
    writers: Annotated[int, typer.Option(min=1, help="Processes that write.")] = 1
    slots: Annotated[int, typer.Option(min=0, max=256, help="Texts at once; 0: choose.")] = 0
    context_size: Annotated[int, typer.Option("--context-size", "-c", min=128)] = 1024
    batch_tokens: Annotated[int, typer.Option(min=64, help="Tokens in a training step.")] = 16_384
    learning_rate: Annotated[
        float, typer.Option(min=0, help="0: choose: 0.002, with --start 0.0005.")
    ] = 0
    seed: Annotated[int, typer.Option()] = 0
    threads: Threads = 0
    gpu_layers: GpuLayers = -1
    suite: Annotated[str, typer.Option(help="Held-out prompts, to measure on.")] = "core-12"
    measured: Annotated[bool, typer.Option("--measure/--no-measure")] = True
    json_output: Json = False

    def place(self) -> _Place:
        return _place(resolve_model(self.target), self.out, _start(self.start, self.kind))

    def job(self, place: _Place) -> Any:
        """The text to write."""
        from parlay.training.writers import WritingJob
        from parlay.training.writing import WritingSettings

        return WritingJob(
            place.target,
            place.work / "corpus",
            self.tokens,
            self.write_minutes * 60 or math.inf,
            self.writers,
            self.gpu_layers,
            self.threads,
            self.prompts,
            WritingSettings(
                slots=self.slots or (256 if _device() == "cuda" else 32),
                context_size=self.context_size,
                max_answer_tokens=min(192, self.context_size // 2),
                max_user_tokens=min(96, self.context_size // 8),
                seed=self.seed,
                shares=_shares(self.prompts),
                device=_device(),
            ),
        )

    def recipe(self, first_type: str) -> Any:
        """The training, but for its steps: these are known once the text is."""
        from parlay.training.trainer import LEARNING_RATE, START_LEARNING_RATE, Recipe

        return Recipe(
            steps=1,
            minutes=self.minutes or math.inf,
            batch_tokens=self.batch_tokens,
            learning_rate=self.learning_rate
            or (START_LEARNING_RATE if self.start else LEARNING_RATE),
            rounding=first_type if first_type != "f16" else "",
            seed=self.seed,
        )


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("distill", help="Train a drafter for a target.", epilog=EXAMPLE)(
        with_groups(distill)
    )


def distill(options: DistillOptions) -> None:
    """Write text with the target, train a small model on it, export, measure, record."""
    _need_torch()
    prepare = _training_of(options.kind)
    place, types = options.place(), _types(options.file_type)
    job, recipe = options.job(place), options.recipe(types[0])
    try:
        training = prepare(place, job, options.preset)
        files, result = _make(place, job, training, recipe, options.passes, types)
        measured = _measure(place, options.suite, options.gpu_layers) if options.measured else None
    except KeyboardInterrupt:
        typer.echo("parlay: stopped; the same command goes on from here", err=True)
        raise typer.Exit(130) from None
    recorded = _record(place, f"{options.kind} {_origin(place, options.preset)}", measured)
    _show(files, result, measured, recorded, options.json_output)


# -- before the work --------------------------------------------------------------------------


def _need_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise BadRequest("parlay distill needs PyTorch: pip install 'parlay[train]'")


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _start(named: str | None, kind: str) -> Path | None:
    if named and kind != "llama":
        raise BadRequest(f"--start is for --kind llama; a drafter of kind {kind} begins anew")
    return resolve_drafter(named) if named else None


def _origin(place: _Place, preset_name: str) -> str:
    return f"from {place.start.name}" if place.start else preset_name or _PRESET


def _place(target: Path, out: Path, start: Path | None) -> _Place:
    from parlay.llama.facts import read_facts

    if not read_facts(target).has_chat_template:
        raise BadRequest(
            f"{target.name} has no chat template: it cannot be asked to write; take an instruction"
            " model"
        )
    if not out.parent.is_dir():
        raise BadRequest(f"there is no folder {out.parent} for {out.name}; make it first")
    if out.suffix != ".gguf":
        raise BadRequest(f"{out} should end in .gguf")
    for what, taken in (("its target", target), ("the one it starts from", start)):
        if taken and out.resolve() == taken.resolve():
            raise BadRequest(f"the drafter would overwrite {what}; choose another -o")
    return _Place(target, out, start)


def _types(given: list[str] | None) -> tuple[str, ...]:
    types = tuple(dict.fromkeys(given or ["q4_0"]))
    for each in types:
        if each not in _FILE_TYPES:
            raise BadRequest(f"unknown file type {each!r}; use one of {', '.join(_FILE_TYPES)}")
    return types


def _shares(prompts: Path | None) -> Any:
    from parlay.training.writing_prompts import Shares

    return Shares(given=0.3, seeds=0.2, over_texts=0.2) if prompts else Shares()


# -- the phases -------------------------------------------------------------------------------


def _make(
    place: _Place, job: Any, training: _Training, recipe: Any, passes: float, types: tuple[str, ...]
) -> tuple[list[Path], Any]:
    """Write, train, export; the files, and what is told of the training."""
    _write(job)
    recipe = _for_passes(recipe, passes, job.folder)
    with _bar() as bar:
        export, trained = training(recipe, bar)
    files = export(place.target, place.out, types)
    trained.save(place.work / "report.json")
    return files, trained


def _llama(place: _Place, job: Any, preset_name: str) -> _Training:
    from parlay.training.distill import export_all, train

    shape, begin = _shape(place, preset_name, job.settings.context_size)
    checkpoint = place.work / _checkpoint(place, preset_name)

    def training(recipe: Any, bar: Bar) -> tuple[Callable[..., list[Path]], Any]:
        watch, say = _watch(bar, "train"), _say(bar)
        trainer, trained = train(
            place.target, job.folder, shape, recipe, _device(), checkpoint, watch, say, begin
        )
        return partial(export_all, trainer, trained), trained

    return training


def _dflash(place: _Place, job: Any, preset_name: str) -> _Training:
    from parlay.training.block.block_distill import BlockSettings, export_all_blocks, train_blocks
    from parlay.training.block.block_shape import block_preset

    preset_name = preset_name or _PRESET
    shape = block_preset(preset_name)
    settings = BlockSettings(shape, job.n_tokens, _device(), job.gpu_layers, job.threads)
    checkpoint = place.work / f"dflash-{preset_name}.pt"

    def training(recipe: Any, bar: Bar) -> tuple[Callable[..., list[Path]], Any]:
        watch, say = _watch(bar, "capture the target's states"), _say(bar)
        student, trained = train_blocks(
            place.target, job.folder, settings, recipe, checkpoint, watch, say
        )
        return partial(export_all_blocks, student, trained), trained

    return training


_TRAININGS = {"llama": _llama, "dflash": _dflash}


def _training_of(kind: str) -> Callable[[_Place, Any, str], _Training]:
    if kind not in _TRAININGS:
        raise BadRequest(f"no drafter of kind {kind!r}; use one of {', '.join(_TRAININGS)}")
    return _TRAININGS[kind]


def _for_passes(recipe: Any, passes: float, folder: Path) -> Any:
    """So many steps that the whole text is read so often."""
    from dataclasses import replace

    from parlay.training.corpus import Corpus

    steps = math.ceil(passes * Corpus(folder).n_tokens / recipe.batch_tokens)
    return replace(recipe, steps=steps)


def _watch(bar: Any, first: str) -> Callable[[Any, float, float], None]:
    """Shows how far a training is; `first` is what is done until it says something."""
    task = bar.add_task(first, total=1.0)

    def watch(progress: Any, done: float, loss: float) -> None:
        look = progress.looks[-1] if progress.looks else None
        held = f", {look.first_token:.1%} of first tokens right" if look else ""
        bar.update(task, completed=done, description=f"train: loss {loss:.3f}{held}")

    return watch


def _say(bar: Any) -> Callable[[str], None]:
    return lambda text: bar.console.print(text, highlight=False, soft_wrap=True)


def _shape(place: _Place, preset_name: str, n_ctx: int) -> tuple[Any, Any]:
    """The drafter's shape, and the drafter to start from where one is named."""
    from parlay.llama.facts import read_facts
    from parlay.training.start import read_start
    from parlay.training.student_shape import preset

    if place.start is None:
        return preset(preset_name or _PRESET, read_facts(place.target).n_vocab, n_ctx), None
    begin = read_start(place.start, place.target, n_ctx)
    if preset_name:
        begin.check_preset(preset_name)
    return begin.shape, begin


def _checkpoint(place: _Place, preset_name: str) -> str:
    """Another one for another start: it would win over what was asked for."""
    if place.start is None:
        return f"{preset_name or _PRESET}.pt"
    return f"start-{file_identity(place.start)[:8]}.pt"


def _write(job: Any) -> None:
    from dataclasses import replace

    from parlay.training.corpus import HEADER, Corpus
    from parlay.training.writers import write

    known = Corpus(job.folder).n_generated if (job.folder / HEADER).is_file() else 0
    if known >= job.n_tokens:
        return
    with _bar() as bar:
        task = bar.add_task("write", total=job.n_tokens, completed=known)
        write(
            replace(job, n_tokens=job.n_tokens - known),
            lambda n: bar.update(
                task, completed=known + n, description=f"write: {known + n:,} tokens"
            ),
        )


def _bar() -> Bar:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    return Bar(*columns, console=Console(stderr=True), transient=True)


def _measure(place: _Place, suite: str, gpu_layers: int) -> Baseline:
    from parlay.bench.suite import load_suite

    settings = Settings(
        cycles=len(load_suite(suite).prompts),
        window=_WINDOW,
        max_tokens=256,
        suite=suite,
        gpu_layers=gpu_layers,
    )
    with _bar() as bar:
        task = bar.add_task("measure", total=settings.cycles)
        return measure(place.target, place.out, settings, lambda n: bar.update(task, completed=n))


def _record(place: _Place, preset_name: str, baseline: Baseline | None) -> str:
    if baseline is not None:
        save_baseline(place.target, place.out, baseline)
    alignment = check_pair(place.target, place.out)
    return record(place.target, place.out, alignment, f"parlay distill, {preset_name}").name


def _show(
    files: list[Path], result: Any, baseline: Baseline | None, pair: str, as_json: bool
) -> None:
    if as_json:
        told = {
            "files": [str(path) for path in files],
            "pair": pair,
            "training": result.as_dict(),
            "measured": None if baseline is None else baseline.as_dict(),
        }
        typer.echo(json.dumps(told))
        return
    out = Console(highlight=False)
    for path in files:
        out.print(f"{path}  {path.stat().st_size / 1e6:.1f} MB", soft_wrap=True)
    for name, found in result.agreement.items():
        out.print(
            f"  {name:5} held-out text: first token {found.first_token:.1%},"
            f" acceptance length {found.acceptance_length:.2f} at window {found.window}"
        )
    if baseline is not None:
        out.print(categories(baseline))
        out.print(f"a drafted token costs {baseline.draft_cost:.2f} of the target's")
    out.print(f"recorded: {pair}", soft_wrap=True)
