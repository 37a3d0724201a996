"""What the server remembers of earlier answers: told in numbers, forgotten on request, kept.

Knows the engine's suffix proposer and a path; never shows a text.
"""

from __future__ import annotations

import json
import logging
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from parlay.deployment import DeploymentError
from parlay.engine.engine import Engine
from parlay.proposers.lookup import Lookup
from parlay.proposers.memory import Memory, Remembered

log = logging.getLogger("parlay.server")
_MARK = b'{"parlay_memory"'  # how every file of ours begins


def check_memory_file(path: Path) -> None:
    """Refuse what somebody else keeps there: a slip of the pen must not cost them their file."""
    if path.exists() and not _is_ours(path):
        raise DeploymentError(
            f"runtime.remember_file: {path} is no memory of answers; name another file"
        )


def _is_ours(path: Path) -> bool:
    """By its first bytes, since damage may come after them; an empty file is anybody's."""
    try:
        with path.open("rb") as file:
            first = file.read(len(_MARK))
    except OSError:
        return False
    return _MARK.startswith(first)


class AnswerMemory:
    """The memory of one engine; all but the numbers is done on the worker's thread."""

    def __init__(self, engine: Engine, path: Path | None) -> None:
        self._engine = engine
        self._path = path
        self._kept: Remembered | None = None  # as it was when it was last written
        if path is not None:
            engine.call(self._load).result()  # a damaged file is aside before anybody is answered

    @property
    def told(self) -> Remembered | None:
        """None: nothing is remembered here."""
        memory = self._memory
        return None if memory is None else memory.told

    def forget(self, owner: str | None) -> Future[None]:
        """One owner's texts, or everybody's; from the file, too. Done once they are."""

        def forget() -> None:
            if self._memory is not None:
                self._memory.forget(owner)
                self._save()

        return self._engine.call(forget)

    def keep(self) -> None:
        """Write the file anew where anything has changed."""
        if self._path is not None:
            self._engine.call(self._save)

    @property
    def _memory(self) -> Memory | None:
        found = self._engine.drafts.proposers.get("suffix")
        return found.memory if isinstance(found, Lookup) else None

    def _load(self) -> None:
        memory, path = self._memory, self._path
        if memory is None or path is None or not path.exists():
            return
        try:
            check_memory_file(path)
            text = path.read_bytes()
            if text and not memory.load(_parsed(text)):
                aside = path.with_suffix(path.suffix + ".damaged")
                path.replace(aside)
                log.warning("%s is damaged; it was set aside as %s", path.name, aside.name)
        except OSError as error:
            self._keep_nothing(f"{path.name}: {error.strerror}")
        except DeploymentError as error:  # it came there while the target was loaded
            self._keep_nothing(error.message)
        self._kept = memory.told

    def _keep_nothing(self, why: str) -> None:
        log.warning("what is remembered is not kept: %s", why)
        self._path = None

    def _save(self) -> None:
        memory, path = self._memory, self._path
        if memory is None or path is None or memory.told == self._kept:
            return
        try:
            memory.save(path)
            self._kept = memory.told
        except OSError as error:
            log.warning("what is remembered cannot be kept in %s: %s", path.name, error.strerror)


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        record = json.loads(text)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}
