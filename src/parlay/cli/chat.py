"""`parlay chat`: a conversation in the terminal, with a model here or over a running server.

Reads lines and prints tokens; the conversation itself is in `chat_session`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from parlay.cli import show
from parlay.cli.chat_answerer import Answerer, LocalAnswerer, RemoteAnswerer, Ways
from parlay.cli.chat_session import Leave, Session, brief, read_conversation
from parlay.cli.options import ContextSize, GpuLayers, Threads
from parlay.errors import BadRequest, ParlayError
from parlay.pairing.manifest import config_folder
from parlay.parlay import Parlay

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

EXAMPLE = """
Example: parlay chat bartowski/Qwen2.5-7B-Instruct-GGUF:Q4_K_M

Example: parlay chat --url http://127.0.0.1:8080

/help lists what can be typed. Drafted tokens are coloured. Lines from a pipe are asked one by one.
"""
_FENCE = '"""'
_MAX_HISTORY = 1 << 20


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("chat", help="Talk to a model in the terminal.", epilog=EXAMPLE)(chat)


def chat(
    model: Annotated[str | None, typer.Argument(help="A model: file or name; default.")] = None,
    url: Annotated[str | None, typer.Option(help="Of a running server, instead.")] = None,
    draft: Annotated[
        list[str] | None, typer.Option(help="As in parlay generate.", show_default="auto")
    ] = None,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    resume: Annotated[Path | None, typer.Option(help="A conversation kept by /save.")] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", "-n", min=1)] = 512,
    temperature: Annotated[float | None, typer.Option(min=0)] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    context_size: ContextSize = 4096,
    threads: Threads = 0,
    gpu_layers: GpuLayers = -1,
    api_key: Annotated[
        str | None, typer.Option(envvar="PARLAY_API_KEY", help="Where a server asks for one.")
    ] = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="One JSON object for each answer.")
    ] = False,
) -> None:
    """Talk."""

    drafts = ",".join(draft) if draft else "auto"

    def open_(name: str) -> Parlay:
        with show.measuring() as progress:
            return Parlay(
                name, draft=drafts, context_size=context_size, threads=threads,
                gpu_layers=gpu_layers, progress=progress,
            )  # fmt: skip

    ways = Ways(max_tokens, temperature, seed)
    earlier = [] if resume is None else read_conversation(resume)
    answerer = (
        RemoteAnswerer(url, model, api_key) if url else LocalAnswerer(model or "default", open_)
    )
    try:
        session = Session(answerer, ways, system)
        session.resume(earlier)
        _talk(session, answerer, json_output)
    finally:
        answerer.close()


def _talk(session: Session, answerer: Answerer, json_output: bool) -> None:
    out, err = Console(highlight=False), Console(stderr=True, highlight=False)
    typed = sys.stdin.isatty() and out.is_terminal
    if typed and not json_output:
        err.print(f"{answerer.name}. /help lists what can be typed.", style="dim", markup=False)
    read = _typed() if typed else _piped()
    for line in read:
        try:
            if line.startswith("/"):
                err.print(Text(session.command(line), style="dim"), soft_wrap=True)
            elif json_output:
                _answer_json(session, line)
            else:
                _answer(session, line, out, err)
        except Leave:
            return
        except ParlayError as error:  # the conversation goes on
            err.print(Text(f"parlay: {error.message}", style="red"), soft_wrap=True)
            if not typed:
                raise typer.Exit(2) from None


def _answer(session: Session, line: str, out: Console, err: Console) -> None:
    stream = session.say(line)
    try:
        for token in stream:
            if out.is_terminal:
                style = "" if token.origin is None else show.COLOURS[token.origin]
                out.print(Text(token.text, style=style), end="", soft_wrap=True)
            else:
                out.file.write(token.text)
                out.file.flush()
    except KeyboardInterrupt:
        stream.close()  # frees the model within a round
        out.print()
        err.print("broken off", style="dim")
        return
    except ParlayError:
        out.print()  # what is said of it stands on a line of its own
        raise
    out.print()
    if session.figures is not None:
        err.print(Text(brief(session.figures), style="dim"), soft_wrap=True)


def _answer_json(session: Session, line: str) -> None:
    text = "".join(token.text for token in session.say(line))
    figures = None if session.figures is None else session.figures.as_dict()
    typer.echo(json.dumps({"text": text, "figures": figures}, ensure_ascii=False))


# -- what is typed ----------------------------------------------------------------------------


def _piped() -> Iterator[str]:
    return blocks(iter(sys.stdin.readline, ""))


def _typed() -> Iterator[str]:
    """Until Ctrl-D; Ctrl-C forgets the line."""
    session = _prompt_session()

    def lines() -> Iterator[str]:
        while True:
            try:
                yield session.prompt() + "\n"
            except KeyboardInterrupt:
                continue
            except EOFError:
                return

    return blocks(lines())


def blocks(lines: Iterator[str]) -> Iterator[str]:
    '''Questions: a line each, or everything between two lines of """.'''
    for line in lines:
        text = line.strip()
        if text.startswith(_FENCE):
            text = _fenced(text[len(_FENCE) :], lines)
        if text:
            yield text


def _fenced(first: str, lines: Iterator[str]) -> str:
    parts = [first] if first else []
    for line in [] if first.endswith(_FENCE) else lines:
        parts.append(line.rstrip("\n"))
        if line.rstrip().endswith(_FENCE):
            break
    return "\n".join(parts).removesuffix(_FENCE).strip()


def _prompt_session() -> PromptSession[str]:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.history import FileHistory
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    from parlay.cli.chat_session import HELP

    keys = KeyBindings()

    @keys.add("enter")
    def _send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    # Not Ctrl-J: it is what Enter is as long as an answer comes, when lines are typed ahead.
    @keys.add("escape", "enter")
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    commands = WordCompleter([name.split()[0] for name in HELP], sentence=True)
    return PromptSession(
        "> ",
        multiline=True,
        key_bindings=keys,
        history=FileHistory(str(history_file())),
        completer=commands,
        complete_while_typing=False,
        prompt_continuation="  ",
    )


def history_file() -> Path:
    """What was typed in earlier runs, for the arrow keys; only its user may read it."""
    path = config_folder() / "chat-history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > _MAX_HISTORY:
            path.write_bytes(newest(path.read_bytes()))
        path.touch(mode=0o600)
        return path
    except OSError as error:
        raise BadRequest(
            f"{path} cannot be written ({error.strerror}); set PARLAY_CONFIG"
        ) from None


def newest(content: bytes) -> bytes:
    """The last half of a history, from the beginning of an entry."""
    tail = content[-_MAX_HISTORY // 2 :]
    return tail[max(0, tail.find(b"\n\n#")) :]
