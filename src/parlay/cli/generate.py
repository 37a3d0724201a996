"""`parlay generate`: answer one prompt, show what speculation did.

Turns options into calls of `Parlay`; knows nothing below it.
"""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, Annotated, Any, Literal

import typer
from rich.console import Console

from parlay.cli import show
from parlay.cli.machine_options import NO_MACHINE_OPTIONS, MachineOptions
from parlay.cli.option_groups import with_groups
from parlay.cli.options import Json, PlacingOptions, Threads
from parlay.engine.request import Mode
from parlay.errors import BadRequest
from parlay.parlay import Parlay, Stream

EXAMPLE = """
Example: parlay generate "Write a haiku about rain" --draft suffix --window 4

PROMPT - reads standard input. Text goes to standard output, the summary to standard error.
"""


Switch = Literal["auto", "on", "off"]


@dataclass(frozen=True, slots=True)
class LoadOptions(PlacingOptions):
    """What is loaded, and how."""

    model: Annotated[str, typer.Option("--model", "-m", help="GGUF file, or default.")] = "default"
    draft: Annotated[
        list[str] | None,
        typer.Option(
            help="auto, none, suffix, default or default-block (the shipped drafters),"
            " PATH of a drafter, or several: suffix,PATH; may be repeated.",
            show_default="auto",
        ),
    ] = None
    window: Annotated[
        int | None,
        typer.Option("--window", "-k", min=0, help="Tokens to draft; default: by measured time."),
    ] = None
    mode: Annotated[
        Mode | None, typer.Option(help="Default: exact where that costs less than 5 %.")
    ] = None
    exact_class: Annotated[str | None, typer.Option(help="Class of passes, such as 3-4.")] = None
    threads: Threads = 0
    follow_load: Annotated[
        bool, typer.Option(help="On a CPU: fewer threads where other work takes the cores.")
    ] = True
    devices: Annotated[
        list[str] | None, typer.Option("--devices", "--device", help="Such as CUDA0; may repeat.")
    ] = None
    flash_attention: Switch = "auto"
    mmap: bool = True
    mlock: bool = False
    large_pages: Annotated[
        bool, typer.Option(help="On a CPU: copy the weights into large pages if there is room.")
    ] = True
    batch: Annotated[int, typer.Option(help="Most rows in one pass; 0: as suits the machine.")] = 0
    vram_budget_gb: Annotated[float | None, typer.Option(help="Refuse to load beyond.")] = None
    translate: Annotated[
        bool, typer.Option(help="Allow a drafter of another vocabulary, through text.")
    ] = False
    measure_again: Annotated[
        bool, typer.Option(help="Measure again what passes cost here and which are exact.")
    ] = False

    def keywords(self) -> dict[str, Any]:
        """As `Parlay` takes them."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        given["target"] = given.pop("model")
        given["draft"] = ",".join(self.draft) if self.draft else "auto"
        sizes = {"context_size": self.size, "gpu_layers": self.layers}
        return given | sizes | {"devices": self.devices or ()}


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """How it is answered."""

    max_tokens: Annotated[int, typer.Option("--max-tokens", "-n", min=1)] = 256
    raw: Annotated[bool, typer.Option(help="No chat template.")] = False
    stop: Annotated[list[str] | None, typer.Option(help="Stop string; may be repeated.")] = None
    seed: Annotated[int, typer.Option(min=0)] = 0
    temperature: Annotated[
        float | None, typer.Option(min=0, help="Default: as the model's file recommends, or 0.8.")
    ] = None
    top_k: Annotated[int, typer.Option(min=0)] = 0
    top_p: Annotated[float, typer.Option(min=0, max=1)] = 1.0
    min_p: Annotated[float, typer.Option(min=0, max=1)] = 0.0
    typical_p: Annotated[float, typer.Option(min=0, max=1)] = 1.0
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_last_n: Annotated[int, typer.Option(min=0)] = 64
    logit_bias: Annotated[
        list[str] | None, typer.Option(help="TOKEN_ID=BIAS; may be repeated.")
    ] = None
    logprobs: Annotated[int | None, typer.Option(min=0, help="Best tokens to score.")] = None
    json_schema: Annotated[
        Path | None, typer.Option(help="A file with a JSON schema that the answer obeys.")
    ] = None
    grammar: Annotated[
        Path | None, typer.Option(help="A file with a GBNF grammar that the answer obeys.")
    ] = None
    context_full: Literal["stop", "slide"] = "stop"

    def keywords(self) -> dict[str, Any]:
        """As `Parlay.stream` takes them."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.temperature is None:
            del given["temperature"]
        return given | {
            "stop": self.stop or (),
            "logit_bias": _parse_biases(self.logit_bias or []),
            "json_schema": None if self.json_schema is None else _read_schema(self.json_schema),
            "grammar": None if self.grammar is None else _read_file("--grammar", self.grammar),
        }


_LOAD, _ANSWER = LoadOptions(), AnswerOptions()


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("generate", help="Answer a prompt with live acceptance.", epilog=EXAMPLE)(
        with_groups(generate)
    )


def generate(
    prompt: Annotated[str, typer.Argument(help="The prompt; - reads standard input.")],
    load: LoadOptions = _LOAD,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    answer: AnswerOptions = _ANSWER,
    trace: Annotated[
        Path | None, typer.Option(help="Write every round's decision there, as JSON lines.")
    ] = None,
    json_output: Json = False,
    machine: MachineOptions = NO_MACHINE_OPTIONS,
) -> None:
    """Answer one prompt."""
    wanted = answer.keywords()
    text = _read_stdin() if prompt == "-" else prompt
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": text})
    with (
        nullcontext() if trace is None else _open_trace(trace) as lines,
        show.measuring() as progress,
        Parlay(**load.keywords(), **machine.keywords(), progress=progress) as parlay,
    ):
        if lines is not None:
            parlay.engine.trace(lines.write)
        plain_text = answer.raw or parlay.template is None
        _print(parlay.stream(text if plain_text else messages, **wanted), json_output)


def _print(stream: Stream, json_output: bool) -> None:
    if json_output:
        typer.echo(json.dumps(stream.answer.as_dict(), ensure_ascii=False))
        return
    out, err = Console(highlight=False), Console(stderr=True, highlight=False)
    show.stream(stream, out)
    if out.is_terminal and stream.answer.speculation.n_drafted:
        err.print(show.LEGEND, style="dim")
    err.print(show.summary(stream.answer))


def _open_trace(path: Path) -> IO[str]:
    try:
        return path.open("w", encoding="utf-8", buffering=1)  # a line that was written stays
    except OSError as error:
        raise BadRequest(f"--trace: cannot write {path}: {error.strerror}") from None


def _read_file(option: str, path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise BadRequest(f"{option}: cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadRequest(f"{option}: {path} is not text in UTF-8") from None


def _read_schema(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(_read_file("--json-schema", path))
    except ValueError as error:
        raise BadRequest(f"--json-schema: {path} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadRequest(f"--json-schema: {path} must hold one object")
    return found


def _read_stdin() -> str:
    """Whatever the locale says, a prompt is UTF-8; what is not is refused where it is tokenised."""
    return sys.stdin.buffer.read().decode("utf-8", "surrogateescape")


def _parse_biases(given: list[str]) -> dict[int, float]:
    biases: dict[int, float] = {}
    for item in given:
        token, _, bias = item.partition("=")
        try:
            biases[int(token)] = float(bias)
        except ValueError:
            raise BadRequest(f"--logit-bias {item!r} is not TOKEN_ID=BIAS; try 42=-5") from None
    return biases
