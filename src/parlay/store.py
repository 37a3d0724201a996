"""Small JSON records in the user's cache folder, keyed by what they depend on; files written whole.

Knows nothing of what is in them. A record that cannot be read counts as absent.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import platformdirs

from parlay.errors import ParlayError

T = TypeVar("T")
log = logging.getLogger("parlay.store")
_EDGE = 1 << 20


def cache_folder() -> Path:
    """Where Parlay keeps what it can make again; PARLAY_CACHE moves it."""
    given = os.environ.get("PARLAY_CACHE")
    return Path(given).expanduser() if given else Path(platformdirs.user_cache_dir("parlay"))


def fingerprint(*parts: object) -> str:
    """A short hash of anything printable."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


def file_identity(path: Path) -> str:
    """Tells one large file from another in milliseconds: its size, its start and its end."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(_EDGE)
        file.seek(max(0, size - _EDGE))
        tail = file.read(_EDGE)
    return hashlib.sha256(head + tail + str(size).encode()).hexdigest()[:24]


def load(kind: str, key: str) -> dict[str, Any] | None:
    """The record, or None."""
    return read(kind, key, _mapping)


def read(kind: str, key: str, parse: Callable[[dict[str, Any]], T]) -> T | None:
    """What a record says, or None. One that makes no sense is set aside, with one line."""
    path = cache_folder() / kind / f"{key}.json"
    try:
        text = path.read_text("utf-8", "replace")
    except OSError:
        return None
    try:
        return parse(_mapping(json.loads(text)))
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, ParlayError) as error:
        _set_aside(path, error)
        return None


def _mapping(found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise ValueError("it is no object")
    return found


def _set_aside(path: Path, error: Exception) -> None:
    """Out of the way, for whoever wants to look; it is made again."""
    reason = " ".join(str(error).split())[:120] or type(error).__name__
    log.warning("%s is damaged (%s): it was set aside, and is made anew", path, reason)
    with suppress(OSError):
        path.replace(path.with_suffix(".damaged"))


def save(kind: str, key: str, record: dict[str, Any]) -> None:
    """Write a record at once or not at all; a read-only cache folder is not an error."""
    folder = cache_folder() / kind
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with whole(folder / f"{key}.json") as part:
            part.write_text(json.dumps(record), "utf-8")
    except OSError:
        return


def update(kind: str, key: str, change: Callable[[dict[str, Any] | None], dict[str, Any]]) -> None:
    """Change a record, while nobody else does."""
    path = cache_folder() / kind / f"{key}.json"
    try:
        with locked(path):
            save(kind, key, change(load(kind, key)))
    except OSError:
        return


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """A file that is read, changed and written: one process at a time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def remove(kind: str, key: str) -> None:
    """Forget a record, if there is one."""
    with suppress(OSError):
        (cache_folder() / kind / f"{key}.json").unlink(missing_ok=True)


def can_hold(folder: Path) -> bool:
    """Whether files can be written to a folder, or to one that could be made there; makes none."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Where to write a file that is to appear at `path` at once or not at all."""
    part = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.part")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
