"""The `parlay` command: its verbs, and how errors become one line and an exit code.

Exit codes: 0 yes, 1 the answer is no, 2 bad use or bad input.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import threading

import typer
from typer.exceptions import TyperException

from parlay import __version__
from parlay.cli import bench, doctor, engine, models, plan, ps, run, serve, train, tune
from parlay.errors import EngineError, ParlayError
from parlay.llama import engines

app = typer.Typer(
    name="parlay",
    help="Local language models, faster, without changing a word of what they say.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: it fits a screen
)
for verb in (run, serve, models, ps, tune, bench, plan, doctor, engine, train):
    verb.register(app)


class _Once(logging.Filter):
    """What is chosen each time a model is opened is told the first time."""

    def __init__(self) -> None:
        super().__init__()
        self._told: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        line = record.getMessage()
        if record.name != "parlay.chosen":
            return True
        is_new = line not in self._told
        self._told.add(line)
        return is_new


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"parlay {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    verbose: bool = typer.Option(False, "--verbose", "-v", help="Show llama.cpp's log."),
    engine: str = typer.Option(
        "", help="Folder or name of llama.cpp's libraries (parlay engine); else PARLAY_ENGINE."
    ),
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Show the version."
    ),
) -> None:
    if engine:  # processes that are started inherit it
        os.environ[engines.NAMED] = engine
        engines.open_early()
    handler = logging.StreamHandler()
    handler.addFilter(_Once())
    level = logging.DEBUG if verbose else logging.WARNING
    logging.basicConfig(level=level, format="parlay: %(message)s", handlers=[handler])
    logging.getLogger("parlay.chosen").setLevel(logging.INFO)  # what was left to us to choose
    if not verbose:  # llama.cpp's complaints reach people through our errors
        logging.getLogger("parlay.llama").setLevel(logging.ERROR)


def app_main() -> None:
    """Run the command line; a user's mistake is one line, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a locale without a character gets a mark for it
            stream.reconfigure(errors="replace")
    try:
        code = app(standalone_mode=False)
    except EngineError as error:  # nobody has asked for anything wrong
        code = min(1, _complain(error.message))
    except ParlayError as error:
        code = _complain(error.message)
    except (KeyboardInterrupt, typer.Abort):
        code = _interrupted()
    except TyperException as error:
        code = _complain(f"{_message(error)} (see --help)")
    except BrokenPipeError:
        # Whoever read our output has gone; leave quietly, as other tools do.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    sys.exit(code or 0)


def _interrupted() -> int:
    """Ctrl-C. Twice while a model is loaded: llama.cpp computes on, and must not be cleared away
    under its own feet."""
    from parlay.engine.worker import WORKER  # most verbs need none

    if any(thread.name == WORKER for thread in threading.enumerate()):
        sys.stdout.flush()
        os._exit(130)
    return 130


def _message(error: TyperException) -> str:
    """A usage error knows which option was wrong; its plain text does not say."""
    describe = getattr(error, "format_message", None)
    return str(describe() if describe else error)


def _complain(message: str) -> int:
    line = " ".join(message.split())
    if line.startswith("(see"):  # the help was wanted, and has been shown
        return 0
    print(f"parlay: {line}", file=sys.stderr)
    return 2
