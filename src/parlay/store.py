"""Small JSON records in the user's cache folder, keyed by what they depend on; files written whole.

Knows nothing of what is in them. A record that cannot be read counts as absent.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import platformdirs

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
    try:
        found = json.loads((cache_folder() / kind / f"{key}.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def save(kind: str, key: str, record: dict[str, Any]) -> None:
    """Write a record at once or not at all; a read-only cache folder is not an error."""
    folder = cache_folder() / kind
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=folder, suffix=".part", delete=False, encoding="utf-8"
        ) as file:
            json.dump(record, file)
        Path(file.name).replace(folder / f"{key}.json")
    except OSError:
        return


def remove(kind: str, key: str) -> None:
    """Forget a record, if there is one."""
    with suppress(OSError):
        (cache_folder() / kind / f"{key}.json").unlink(missing_ok=True)


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Where to write a file that is to appear at `path` at once or not at all."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
