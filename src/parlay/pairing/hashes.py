"""Hashes of large files, computed once for each state of a file.

Knows nothing of models. A file of the same size and time of change is taken for unchanged.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from parlay import store
from parlay.errors import ModelFileError

_CHUNK = 1 << 22


@dataclass(frozen=True, slots=True)
class Stamp:
    """What tells in no time that a file may have changed."""

    n_bytes: int
    mtime_ns: int


def stamp(path: Path) -> Stamp:
    """Size and time of change."""
    try:
        info = path.stat()
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read ({error.strerror}); check the path") from None
    return Stamp(info.st_size, info.st_mtime_ns)


def sha256_of(path: Path) -> str:
    """The file's SHA-256; remembered until its size or time of change is another."""
    now = stamp(path)
    key = store.fingerprint(str(path.resolve()), now.n_bytes, now.mtime_ns)
    known = store.load("hashes", key)
    if known is not None and isinstance(known.get("sha256"), str):
        return str(known["sha256"])
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    store.save("hashes", key, {"sha256": digest.hexdigest()})
    return digest.hexdigest()
