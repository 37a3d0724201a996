"""`parlay train`: make a drafter for a target out of the target alone.

Turns options into the phases of this package, shows them, and records the pair.
"""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from parlay.cli.common import described
from parlay.errors import BadRequest
from parlay.hub.resolving import resolve_drafter, resolve_model
from parlay.llama.facts import read_facts
from parlay.pairing.alignment import check_pair
from parlay.pairing.records import record
from parlay.store import file_identity
from parlay_train.corpus import HEADER, Corpus

EXAMPLE = """
Example: parlay train target.gguf -o drafter.gguf --tokens 2000000

Example: parlay train default -o drafter.gguf --preset small --minutes 30 --prompts requests.jsonl

Example: parlay train default -o mine.gguf --start default --prompts requests.jsonl --minutes 10

Example: parlay train default -o block.gguf --kind dflash

Text and checkpoints are kept in a folder beside the drafter; the same command goes on where it
stopped. Then: parlay run -m target.gguf "..." (the pair is recorded).
"""
_FILE_TYPES = ("q4_0", "q8_0", "f16")
_PRESET = "base"

# By a recipe, shown by a bar: what exports the drafter, and what is told of its training.
_Training = Callable[[Any, Bar], tuple[Callable[..., list[Path]], Any]]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


def main(arguments: Sequence[str]) -> int:
    """The verb's entry point: everything that was typed after `parlay train`."""
    return int(app(list(arguments), prog_name="parlay train", standalone_mode=False) or 0)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where everything comes from and goes."""

    target: Path
    out: Path
    start: Path | None = None

    @property
    def work(self) -> Path:
        return self.out.with_suffix(".train")


@app.command("train", help=described("Train a drafter for a target.", EXAMPLE))
def train(
    target: Annotated[str, typer.Argument(help="GGUF of an instruction model, or default.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The drafter's file.")],
    kind: Annotated[
        str, typer.Option(help="llama: a small model; dflash: blocks from the target's states.")
    ] = "llama",
    preset: Annotated[
        str,
        typer.Option(
            help="tiny, small, deep, base, wide, large; dflash: tiny, small, base, shared."
            " Default: base."
        ),
    ] = "",
    start: Annotated[
        str | None, typer.Option(help="Begin with the weights of this drafter, or of default.")
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Text to write, in tokens.")] = 2_000_000,
    passes: Annotated[float, typer.Option(min=0.01, help="Over the text.")] = 10.0,
    minutes: Annotated[float, typer.Option(min=0, help="Of training; 0: all passes.")] = 0,
    prompts: Annotated[
        Path | None, typer.Option(help="Your prompts: JSON lines, a request log, or plain text.")
    ] = None,
    file_type: Annotated[
        list[str] | None, typer.Option(help="q4_0, q8_0, f16; the first is -o. May repeat.")
    ] = None,
    writers: Annotated[int, typer.Option(min=1, help="Processes that write.")] = 1,
    slots: Annotated[int, typer.Option(min=0, max=256, help="Texts at once; 0: choose.")] = 0,
    context_size: Annotated[int, typer.Option("--context-size", "-c", min=128)] = 1024,
    batch_tokens: Annotated[int, typer.Option(min=64, help="Tokens in a training step.")] = 16_384,
    learning_rate: Annotated[
        float, typer.Option(min=0, help="0: choose: 0.002, with --start 0.0005.")
    ] = 0,
    seed: Annotated[int, typer.Option()] = 0,
    threads: Annotated[int, typer.Option("--threads", "-t", min=0, help="0: all cores.")] = 0,
    gpu_layers: Annotated[int, typer.Option(min=-1, help="-1: all, if there is a GPU.")] = -1,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write text with the target, train a small model on it, export, record."""
    if importlib.util.find_spec("torch") is None:
        raise BadRequest("parlay train needs PyTorch: pip install torch")
    from parlay_train.trainer import LEARNING_RATE, START_LEARNING_RATE, Recipe
    from parlay_train.writers import WritingJob
    from parlay_train.writing import WritingSettings
    from parlay_train.writing_prompts import Shares

    if kind not in _TRAININGS:
        raise BadRequest(f"no drafter of kind {kind!r}; use one of {', '.join(_TRAININGS)}")
    place, types = _place(resolve_model(target), out, _start(start, kind)), _types(file_type)
    job = WritingJob(
        place.target,
        place.work / "corpus",
        tokens,
        n_writers=writers,
        gpu_layers=gpu_layers,
        threads=threads,
        prompts=prompts,
        settings=WritingSettings(
            slots=slots or (256 if _device() == "cuda" else 32),
            context_size=context_size,
            max_answer_tokens=min(192, context_size // 2),
            max_user_tokens=min(96, context_size // 8),
            seed=seed,
            shares=Shares(given=0.3, seeds=0.2, over_texts=0.2) if prompts else Shares(),
            device=_device(),
        ),
    )
    recipe = Recipe(
        steps=1,  # as many as the passes take: known once the text is written
        minutes=minutes or math.inf,
        batch_tokens=batch_tokens,
        learning_rate=learning_rate or (START_LEARNING_RATE if start else LEARNING_RATE),
        rounding=types[0] if types[0] != "f16" else "",
        seed=seed,
    )
    try:
        training = _TRAININGS[kind](place, job, preset)
        files, result = _make(place, job, training, recipe, passes, types)
    except KeyboardInterrupt:
        typer.echo("parlay: stopped; the same command goes on from here", err=True)
        raise typer.Exit(130) from None
    origin = f"from {place.start.name}" if place.start else preset or _PRESET
    alignment = check_pair(place.target, place.out)
    pair = record(place.target, place.out, alignment, f"parlay train, {kind} {origin}").name
    _show(files, result, pair, json_output)


# -- before the work --------------------------------------------------------------------------


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _start(named: str | None, kind: str) -> Path | None:
    if named and kind != "llama":
        raise BadRequest(f"--start is for --kind llama; a drafter of kind {kind} begins anew")
    return resolve_drafter(named) if named else None


def _place(target: Path, out: Path, start: Path | None) -> _Place:
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


# -- the phases -------------------------------------------------------------------------------


def _make(
    place: _Place, job: Any, training: _Training, recipe: Any, passes: float, types: tuple[str, ...]
) -> tuple[list[Path], Any]:
    """Write, train, export; the files, and what is told of the training."""
    _write(job)
    steps = math.ceil(passes * Corpus(job.folder).n_tokens / recipe.batch_tokens)
    recipe = replace(recipe, steps=steps)
    with _bar() as bar:
        export, trained = training(recipe, bar)
    files = export(place.target, place.out, types)
    trained.save(place.work / "report.json")
    return files, trained


def _llama(place: _Place, job: Any, preset_name: str) -> _Training:
    from parlay_train.distill import export_all, train

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
    from parlay_train.block.block_distill import BlockSettings, export_all_blocks, train_blocks
    from parlay_train.block.block_shape import block_preset

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
    from parlay_train.start import read_start
    from parlay_train.student_shape import preset

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
    from parlay_train.writers import write

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


def _show(files: list[Path], result: Any, pair: str, as_json: bool) -> None:
    if as_json:
        told = {"files": [str(p) for p in files], "pair": pair, "training": result.as_dict()}
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
    out.print(f"recorded: {pair}; measure it: parlay bench", soft_wrap=True)
