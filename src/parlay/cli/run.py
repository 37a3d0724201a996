"""`parlay run`: answer a prompt or a pipe, or hold a conversation, and show what speculation did.

Turns options into an answerer and shows what it says. Text goes to standard output, everything else
to standard error.
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from parlay.cli import show
from parlay.cli.answerers import Answerer, LocalAnswerer, RemoteAnswerer, Token, Ways
from parlay.cli.common import (
    ContextSize,
    Draft,
    GpuLayers,
    Json,
    Model,
    Set,
    Threads,
    deployment_of,
    described,
    keys,
    loading,
    settings,
)
from parlay.cli.conversation import Leave, Session, brief, typed
from parlay.errors import BadRequest, ParlayError
from parlay.parlay import Parlay

EXAMPLE = """
Example: parlay run "Write a haiku about rain"

Example: git diff | parlay run -m bartowski/Qwen2.5-7B-Instruct-GGUF:Q4_K_M --system "Review this."

Example: parlay run --url http://127.0.0.1:8080

Without a prompt and a pipe it is a conversation; /help lists what can be typed. --set reaches every
key of a deployment, such as runtime.llama.flash-attn=off, and of the answer: answer.top_p=0.9,
top_k, min_p, repeat_penalty, logit_bias, logprobs, mode, raw, context_full and others.
"""


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("run", help=described("Answer a prompt, or talk.", EXAMPLE))(run)


def run(
    prompt: Annotated[str | None, typer.Argument(help="-: standard input.")] = None,
    model: Model = None,
    url: Annotated[str | None, typer.Option(help="Ask a running server instead.")] = None,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", "-n", min=1)] = 512,
    temperature: Annotated[
        float | None, typer.Option(min=0, help="Default: what the model recommends.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0)] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Stop string; may be repeated.")] = None,
    draft: Draft = None,
    window: Annotated[
        int | None, typer.Option("--window", "-k", min=0, help="Draft so much in every round.")
    ] = None,
    context_size: ContextSize = None,
    gpu_layers: GpuLayers = None,
    threads: Threads = None,
    json_schema: Annotated[
        Path | None, typer.Option(help="A file with a JSON schema that the answer obeys.")
    ] = None,
    grammar: Annotated[Path | None, typer.Option(help="Or with a GBNF grammar.")] = None,
    resume: Annotated[Path | None, typer.Option(help="A conversation kept by /save.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Write every round's decision there.")] = None,
    set_key: Set = None,
    json_output: Json = False,
) -> None:
    """Answer one prompt, or talk."""
    given = settings(set_key)
    more = {key[7:]: given.pop(key) for key in list(given) if key.startswith("answer.")}
    if stop:
        more["stop"] = stop
    if json_schema is not None:
        more["json_schema"] = _read_schema(json_schema)
    if grammar is not None:
        more["grammar"] = _read_file("--grammar", grammar)
    ways = Ways(max_tokens, temperature, seed, more=more)
    if prompt == "-" or (prompt is None and not sys.stdin.isatty()):
        # Whatever the locale says, a prompt is UTF-8; what is not is refused where it is tokenised.
        prompt = sys.stdin.buffer.read().decode("utf-8", "surrogateescape")
    if resume is not None:
        Session(_Nobody(), ways).resume(resume)  # said before a model is loaded
    given = (
        keys(
            model=model,
            draft=draft,
            window=window,
            context_size=context_size,
            gpu_layers=gpu_layers,
            threads=threads,
        )
        | given
    )
    with ExitStack() as stack:
        answerer = _answerer(url, model, given, stack, trace)
        session = Session(answerer, ways, system)
        if resume is not None:
            session.resume(resume)
        if prompt is None:
            _talk(session)
        elif json_output and isinstance(answerer, LocalAnswerer):
            session.turns.append({"role": "user", "content": prompt})
            answer = answerer.stream(session.messages, ways).answer
            typer.echo(json.dumps(answer.as_dict(), ensure_ascii=False))
        elif json_output:
            text = "".join(t.text for t in session.say(prompt) if not t.thought)
            told = answerer.figures.speculation if answerer.figures else None
            typer.echo(json.dumps({"text": text, "speculation": told}, ensure_ascii=False))
        else:
            _answer_once(session, prompt)


class _Nobody:
    """Answers nothing: a conversation that is only looked at."""

    name, said, figures = "nobody", "", None

    def answer(self, messages: Any, ways: Ways) -> Any:
        return iter(())

    def change(self, model: str) -> None:
        """There is none."""

    def close(self) -> None:
        """Nothing to close."""


def _answerer(
    url: str | None, model: str | None, given: dict[str, Any], stack: ExitStack, trace: Path | None
) -> Answerer:
    if url is not None:
        strange = sorted(given.keys() - {"model.target"})
        if strange or trace is not None:
            what = strange[0] if strange else "--trace"
            raise BadRequest(f"{what} is for a model that is loaded here; leave it out with --url")
        return stack.enter_context(closing(RemoteAnswerer(url, model, _api_key())))
    lines = None if trace is None else stack.enter_context(_open_trace(trace))

    def open_(name: str) -> Parlay:
        with show.measuring() as progress:
            told = loading(deployment_of(given | {"model.target": name}))
            parlay = Parlay(**told, progress=progress)
        if lines is not None:
            parlay.engine.trace(lines.write)
        return parlay

    target = deployment_of(given).model.target
    return stack.enter_context(closing(LocalAnswerer(target, open_)))


def _api_key() -> str | None:
    import os

    return os.environ.get("PARLAY_API_KEY") or None


def _open_trace(path: Path) -> Any:
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


# -- showing ----------------------------------------------------------------------------------


def _answer_once(session: Session, prompt: str) -> None:
    out, err = Console(highlight=False), Console(stderr=True, highlight=False)
    for token in session.say(prompt):
        _show(token, out)
    out.print()
    answerer = session.answerer
    if isinstance(answerer, LocalAnswerer) and answerer.last is not None:
        if out.is_terminal and answerer.last.speculation.n_drafted:
            err.print(show.LEGEND, style="dim")
        err.print(show.summary(answerer.last))
    elif answerer.figures is not None:
        err.print(Text(brief(answerer.figures), style="dim"), soft_wrap=True)


def _show(token: Token, out: Console) -> None:
    """Coloured on a terminal; a file or a pipe gets every byte of the answer, no thoughts."""
    if out.is_terminal:
        style = "" if token.origin is None else show.COLOURS[token.origin]
        style = f"{style} dim italic" if token.thought else style
        out.print(Text(token.text, style=style.strip()), end="", soft_wrap=True)
    elif not token.thought:  # rich would turn tabs into spaces and drop carriage returns
        out.file.write(token.text)
        out.file.flush()


def _talk(session: Session) -> None:
    out, err = Console(highlight=False), Console(stderr=True, highlight=False)
    err.print(f"{session.answerer.name}. /help lists what can be typed.", style="dim", markup=False)
    for line in typed():
        try:
            if line.startswith("/"):
                err.print(Text(session.command(line), style="dim"), soft_wrap=True)
            else:
                talk_once(session, line, out, err)
        except Leave:
            return
        except ParlayError as error:  # the conversation goes on
            err.print(Text(f"parlay: {error.message}", style="red"), soft_wrap=True)


def talk_once(session: Session, line: str, out: Console, err: Console) -> None:
    """One turn of a conversation; Ctrl-C breaks the answer off."""
    stream = session.say(line)
    try:
        for token in stream:
            _show(token, out)
    except KeyboardInterrupt:
        stream.close()  # frees the model within a round
        out.print()
        err.print("broken off", style="dim")
        return
    except ParlayError:
        out.print()  # what is said of it stands on a line of its own
        raise
    out.print()
    if session.answerer.figures is not None:
        err.print(Text(brief(session.answerer.figures), style="dim"), soft_wrap=True)
