"""Texts that every Python installation has: prose of its manual and docstrings, and its code.

Files are read, never imported or run. Knows nothing of tasks; where sources are missing (a frozen
or zipped library) there are fewer texts, or none.
"""

from __future__ import annotations

import ast
import functools
import inspect
import os
import sysconfig
import textwrap
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

MIN_CHARACTERS, MAX_CHARACTERS = 200, 2400
MAX_TEXTS = 4000  # of each kind
_MAX_FILES = 1000
_MAX_FILE_BYTES = 400_000
_PER_FILE = 16  # of each kind, so that no module outweighs the others
# Tests and tables are not what people ask about; site-packages differ from place to place.
_LEFT_OUT = {"__phello__", "__pycache__", "dist-packages", "encodings", "ensurepip", "idlelib"}
_LEFT_OUT |= {"lib2to3", "pydoc_data", "site-packages", "test", "tests", "turtledemo"}

_BODIES = ("body", "cases", "handlers", "orelse", "finalbody")  # of statements, in their order
_Defined = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True, slots=True)
class FoundText:
    """Texts by kind, in an order that depends on the installation alone."""

    prose: tuple[str, ...]
    code: tuple[str, ...]


@functools.cache
def found_texts() -> FoundText:
    """All of them, read once."""
    prose, code = [list(_manual())], list[list[str]]()
    for tree, lines in _parsed(_files()):
        prose.append(_spread(list(_docstrings(tree)), _PER_FILE))
        code.append(_spread(list(_definitions(tree.body, lines)), _PER_FILE))
    return FoundText(_limited(prose), _limited(code))


def _limited(groups: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """No text twice, and not too many."""
    texts = dict.fromkeys(text for group in groups for text in group)
    return tuple(_spread(list(texts), MAX_TEXTS))


def _spread(texts: Sequence[str], n: int) -> list[str]:
    """At most n of them, from beginning to end."""
    step = max(1.0, len(texts) / n)
    return [texts[int(i * step)] for i in range(min(n, len(texts)))]


# -- where they are ---------------------------------------------------------------------------


def _manual() -> Iterator[str]:
    """The chapters of the language's manual that `help()` shows."""
    try:
        from pydoc_data.topics import topics
    except ImportError:  # some distributions leave it out
        return
    for name in sorted(topics):
        yield from passages(topics[name])


def _files() -> Iterator[Path]:
    return islice(_walk(sysconfig.get_path("stdlib")), _MAX_FILES)


def _walk(folder: str) -> Iterator[Path]:
    """Sources, in the order of their names; folders that are left out are not entered."""
    for where, folders, files in os.walk(folder):
        folders[:] = sorted(set(folders) - _LEFT_OUT)
        yield from (Path(where, name) for name in sorted(files) if name.endswith(".py"))


def _parsed(paths: Iterable[Path]) -> Iterator[tuple[ast.Module, list[str]]]:
    for path in paths:
        try:
            if path.stat().st_size > _MAX_FILE_BYTES:
                continue
            source = path.read_text("utf-8")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of another's escapes
                tree = ast.parse(source)
        except (OSError, ValueError, SyntaxError):
            continue  # one file less
        yield tree, source.splitlines()


# -- what is in a file ------------------------------------------------------------------------


def _docstrings(tree: ast.Module) -> Iterator[str]:
    for node in _blocks(tree):
        if isinstance(node, (ast.Module, *_Defined)):
            yield from passages(ast.get_docstring(node) or "")


def _blocks(tree: ast.Module) -> Iterator[ast.AST]:
    """As `ast.walk`, without expressions: most of a tree is, and nothing is defined in them."""
    waiting = deque[ast.AST]([tree])
    while waiting:
        node = waiting.popleft()
        yield node
        for name in _BODIES:
            waiting.extend(getattr(node, name, ()))


def _definitions(body: Iterable[ast.stmt], lines: Sequence[str]) -> Iterator[str]:
    """Functions and classes, whole; of a class that is too long, what it defines."""
    for node in body:
        if not isinstance(node, _Defined):
            continue
        first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
        text = textwrap.dedent("\n".join(lines[first - 1 : node.end_lineno]))
        if MIN_CHARACTERS <= len(text) <= MAX_CHARACTERS:
            yield text
        elif len(text) > MAX_CHARACTERS and isinstance(node, ast.ClassDef):
            yield from _definitions(node.body, lines)


def passages(text: str) -> Iterator[str]:
    """A text in parts of whole paragraphs, each as long as may be; too short ones are left out."""
    part = ""
    for paragraph in (*inspect.cleandoc(text).split("\n\n"), ""):
        longer = f"{part}\n\n{paragraph}" if part else paragraph
        if paragraph and len(longer) <= MAX_CHARACTERS:
            part = longer
            continue
        if len(part) >= MIN_CHARACTERS:
            yield part
        part = paragraph if len(paragraph) <= MAX_CHARACTERS else ""
